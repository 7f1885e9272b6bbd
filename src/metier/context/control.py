"""The tools that control a run, such as `finish` and `delegate`, and `delegate` calls with several tasks."""

from collections.abc import Iterable, Sequence
from functools import cache

from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import ActionStep, ActionType
from metier.messages import ToolSpec
from metier.prompts.texts import describe_parameters, load_tool_text

WORKTREE = "worktree"
NUMBER, OF = "number", "of"
"""Parameters of one of several tasks: its number and the number of tasks."""

PLAN = "plan"
ACTION_OF_TOOL: dict[str, ActionType] = {
    "use_skill": "call_skill",
    "ask_user": "ask_user",
    "delegate": "delegate",
    "finish": "finish",
    "Bash": "run_command",
}
"""Tools with an action type of their own; every other call is `call_tool`."""
_TEXT: dict[str, JsonValue] = {"type": "string"}
_ANYTHING: dict[str, JsonValue] = {"type": "object"}
_TEXTS: dict[str, JsonValue] = {"type": "array", "items": {"type": "string"}}
_PLAN_STATUS: dict[str, JsonValue] = {"type": "string", "enum": ["pending", "in_progress", "done", "dropped"]}


# A `delegate` call with several tasks becomes one action per task, so that rules, limits and retries apply to each.
# Adjacent calls with one task each also start together, but each keeps its own result.
def expand(step: ActionStep) -> list[ActionStep]:
    """Expand a call into its actions, which share its id and whose results are joined under it."""
    tasks = step.params.get("tasks") if step.type == "delegate" else None
    if not isinstance(tasks, list):
        return [step]
    shared = {name: value for name, value in step.params.items() if name == "isolation"}
    return [
        replace(step, params={**_read_task(task), **shared, NUMBER: number, OF: len(tasks)})
        for number, task in enumerate(tasks, start=1)
    ]


def describe_batch_error(arguments: dict[str, JsonValue]) -> str:
    """Describe an error in `delegate` arguments that its schema can't express. Empty if there is none."""
    is_single = "agent" in arguments or "task" in arguments
    if "tasks" in arguments:
        return "give 'tasks', or one 'agent' with one 'task', not both" if is_single else ""
    if missing := [name for name in ("agent", "task") if name not in arguments]:
        return f"{' and '.join(map(repr, missing))} missing; 'tasks' takes several at once"
    return ""


def is_one_of_many(action: ActionStep) -> bool:
    """Return True for one of several tasks of a call, whose runs may work in the same folder at the same time."""
    return action.type == "delegate" and OF in action.params


def count_siblings(action: ActionStep) -> int:
    """Return the number of runs that its call starts, including this one."""
    count = action.params.get(OF) if action.type == "delegate" else None
    return count if isinstance(count, int) else 1


def is_single(action: ActionStep) -> bool:
    """Return True for a `delegate` call with one task."""
    return action.type == "delegate" and OF not in action.params


def is_same_call(action: ActionStep, other: ActionStep) -> bool:
    return is_one_of_many(action) and is_one_of_many(other) and action.call_id == other.call_id


def join_results(results: Sequence[tuple[ActionStep, str, bool]]) -> tuple[str, bool]:
    """Join the results of one call's runs, in order. The call failed if all of its runs failed."""
    parts = [
        f"[{number} of {len(results)}: {action.params.get('agent', '')}{', failed' if is_error else ''}]\n{text}"
        for number, (action, text, is_error) in enumerate(results, start=1)
    ]
    return "\n\n".join(parts), all(is_error for _, _, is_error in results)


def _read_task(task: JsonValue) -> dict[str, JsonValue]:
    return {name: task[name] for name in ("agent", "task")} if isinstance(task, dict) else {}


@cache  # the texts are part of the package and the same for every run
def build_control_specs() -> tuple[ToolSpec, ...]:
    """Build all control tools in a fixed order. A run offers a subset, and its journal pins the texts."""
    return tuple(
        ToolSpec(
            name=name, description=load_tool_text(name).description, input_schema=describe_parameters(name, schema)
        )
        for name, schema in _SCHEMAS.items()
    )


def choose_specs(specs: Iterable[ToolSpec], names: Iterable[str]) -> tuple[ToolSpec, ...]:
    wanted = set(names)
    return tuple(spec for spec in specs if spec.name in wanted)


def _object(required: tuple[str, ...] = (), **properties: dict[str, JsonValue]) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema


_PLAN_STEPS: dict[str, JsonValue] = {
    "type": "array",
    "items": _object(("step", "status"), step=_TEXT, status=_PLAN_STATUS),
    "minItems": 1,
    "maxItems": 20,
}
_CHILD_TASKS: dict[str, JsonValue] = {
    "type": "array",
    "items": _object(("agent", "task"), agent=_TEXT, task=_TEXT),
    "minItems": 1,
}
# A run pins these schemas with its instructions, so a change here does not reach a started run.
_SCHEMAS: dict[str, dict[str, JsonValue]] = {
    "use_skill": _object(("skill",), skill=_TEXT, reason=_TEXT, inputs=_ANYTHING),
    "read_skill_files": _object(("paths",), paths=_TEXTS),
    "skill_search": _object(("query",), query=_TEXT),
    "plan": _object(("steps",), steps=_PLAN_STEPS),
    "ask_user": _object(("question",), question=_TEXT, fields=_ANYTHING),
    "delegate": _object(agent=_TEXT, task=_TEXT, tasks=_CHILD_TASKS, isolation={"type": "string", "enum": [WORKTREE]}),
    "run_task": _object(("task",), task=_TEXT, inputs=_ANYTHING),
    "finish": _object(("result",), result={"type": ["string", "object", "array"]}),
}
CONTROL_NAMES = frozenset(_SCHEMAS)
