"""A call of `delegate` that names several tasks is as many actions, each judged, bounded and run for itself. Pure.

Calls with one task each that stand side by side in a reply begin together too; each keeps its own result.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from metier.decisions import ActionStep

WORKTREE = "worktree"
NUMBER, OF = "number", "of"
"""Which of the tasks of its call an action is, and how many there are."""


def expand(step: ActionStep) -> list[ActionStep]:
    """The actions that a call means; they share its id, and their results are put together again under it."""
    tasks = step.params.get("tasks") if step.type == "delegate" else None
    if not isinstance(tasks, list):
        return [step]
    shared = {name: value for name, value in step.params.items() if name == "isolation"}
    return [
        step.model_copy(update={"params": {**_read_task(task), **shared, NUMBER: number, OF: len(tasks)}})
        for number, task in enumerate(tasks, start=1)
    ]


def find_wrong_batch(arguments: dict[str, JsonValue]) -> str:
    """Why the arguments of a call of `delegate` cannot be used, beside what its schema says; empty where they can."""
    is_single = "agent" in arguments or "task" in arguments
    if "tasks" in arguments:
        return "give 'tasks', or one 'agent' with one 'task', not both" if is_single else ""
    if missing := [name for name in ("agent", "task") if name not in arguments]:
        return f"{' and '.join(map(repr, missing))} missing; 'tasks' takes several at once"
    return ""


def is_one_of_many(action: ActionStep) -> bool:
    """It was asked for in a list, so other runs may work in the same folder at the same time."""
    return action.type == "delegate" and OF in action.params


def count_siblings(action: ActionStep) -> int:
    """How many runs its call asks for, this one among them."""
    count = action.params.get(OF) if action.type == "delegate" else None
    return count if isinstance(count, int) else 1


def is_single(action: ActionStep) -> bool:
    """A call of `delegate` with one agent and one task."""
    return action.type == "delegate" and OF not in action.params


def is_same_call(action: ActionStep, other: ActionStep) -> bool:
    return is_one_of_many(action) and is_one_of_many(other) and action.call_id == other.call_id


def join_results(results: Sequence[tuple[ActionStep, str, bool]]) -> tuple[str, bool]:
    """What one call gave whose work was done by several runs, in the order in which they were asked for.

    It counts as failed where every one of them did.
    """
    parts = [
        f"[{number} of {len(results)}: {action.params.get('agent', '')}{', failed' if is_error else ''}]\n{text}"
        for number, (action, text, is_error) in enumerate(results, start=1)
    ]
    return "\n\n".join(parts), all(is_error for _, _, is_error in results)


def _read_task(task: JsonValue) -> dict[str, JsonValue]:
    return {name: task[name] for name in ("agent", "task")} if isinstance(task, dict) else {}
