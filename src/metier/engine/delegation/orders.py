"""Delegation: permission, target, and share of the budget. Pure.

A run that delegates orders another run. The lineage of a run names the runs above it, so that none of them is asked to
do what waits for it, and the depth of delegation is bounded.
"""

import hashlib
from collections.abc import Sequence

from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import RUN_TASK
from metier.approval.matchers import read_value
from metier.context.control import WORKTREE, count_siblings, is_one_of_many
from metier.decisions import ActionStep, SkillCall
from metier.definitions.names import fold_id
from metier.definitions.placeholders import name_step, render_body
from metier.definitions.task import TaskDefinition, TaskStep
from metier.engine.entries.limits import Limits
from metier.engine.entries.run import RunPaused
from metier.engine.entries.task import ChildRequest
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step
from metier.ids import CHILD

SKIPPED = "(this step was skipped)"
NOT_KNOWN = "(what this step gives is not known in a dry run)"


def is_delegation(action: ActionStep) -> bool:
    """Return True if the action's effect is another run."""
    return action.type == "delegate" or (action.type == "call_tool" and action.params.get("tool") == RUN_TASK)


def build_child_id(key: str, attempt: int) -> str:
    """Derive the child's ID from the step: a step that is repeated after a crash finds its run."""
    return CHILD + hashlib.sha256(f"{key}/{attempt}".encode()).hexdigest()[:24]


def wait_for(*children: str) -> RunPaused:
    said = f"Run {children[0]} works on it" if len(children) == 1 else f"Runs {', '.join(children)} work on it"
    return RunPaused(pause="delegation", reason=said)


def find_refusal(state: RunState, action: ActionStep, limits: Limits) -> str:
    """Return why the work may not be delegated; empty if it may."""
    above = build_lineage(state)
    wanted = name_partner(action)
    if fold_id(wanted) in {fold_id(name) for name in above}:
        kind, _, name = wanted.partition(":")
        # Journals hold this sentence, and a replay compares it: it stays as it is.
        return f"{kind.capitalize()} {name!r} waits for this run already; do it yourself, or ask somebody else"
    if len(above) > limits.max_delegation_depth:
        return f"Work was handed on {limits.max_delegation_depth} times already, which is the limit; do it yourself"
    siblings = count_siblings(action)
    if siblings > limits.max_children_per_call:
        return f"One call may start {limits.max_children_per_call} child runs, this one asks for {siblings}"
    left = limits.max_turns - state.turn - state.delegated_turns
    if left < 1:
        return "No turns are left for it; finish with what there is"
    if left < siblings:
        return f"{left} turns are left, which is not one for each of {siblings} child runs; ask for fewer"
    return ""


def build_lineage(state: RunState) -> tuple[str, ...]:
    """List all ancestors of a child of this run, the run itself last."""
    started = state.started
    assert started is not None
    order = started.order
    if order is None:
        return (f"agent:{started.agent}",)
    own = f"task:{order.task_id}" if order.task_id else f"agent:{started.agent}"
    return (*order.lineage, f"skill:{order.call.skill}" if order.call is not None else own)


def name_partner(action: ActionStep) -> str:
    """Name the target of an action, as in a lineage."""
    if action.type == "delegate":
        return f"agent:{action.params.get('agent', '')}"
    return f"task:{get_arguments(action).get('task', '')}"


def get_arguments(action: ActionStep) -> dict[str, JsonValue]:
    arguments = action.params.get("arguments")
    return arguments if isinstance(arguments, dict) else {}


def order_agent(state: RunState, action: ActionStep, *, beside: Sequence[ActionStep] = ()) -> ChildRequest:
    """Request work of another agent in words. One of several has its share of the budget, and only reads.

    In a worktree of its own it may also write: nothing that it changes is in the way of the others. `beside` are the
    actions that begin together with it.
    """
    has_worktree = _has_worktree(action)
    shares_folder = is_one_of_many(action) or any(not _has_worktree(other) for other in beside)
    return ChildRequest(
        task=str(action.params.get("task", "")),
        agent=str(action.params.get("agent", "")),
        limits=share(state, among=max(count_siblings(action), len(beside) + 1)),
        lineage=build_lineage(state),
        under_skill=state.skill,
        reads_only=shares_folder and not has_worktree,
        worktree=has_worktree,
    )


def _has_worktree(action: ActionStep) -> bool:
    return action.params.get("isolation") == WORKTREE


def order_task(state: RunState, *, task_id: str, text: str, inputs: dict[str, str]) -> ChildRequest:
    """Request a run of a task definition with these inputs."""
    return ChildRequest(
        task=text,
        task_id=task_id,
        inputs=inputs,
        limits=share(state),
        lineage=build_lineage(state),
        under_skill=state.skill,
    )


def order_call(state: RunState, call: SkillCall) -> ChildRequest:
    """Request a call of a skill's code for another skill, by the same agent, within the same task step."""
    assert state.started is not None
    above = state.started.order
    return ChildRequest(
        task=f"Call skill {call.skill!r} for skill {call.chain[-1]!r}",
        agent=state.started.agent,
        model=above.model if above is not None else "",
        step_of=above.step_of if above is not None else "",
        step_file=above.step_file if above is not None else "",
        limits=share(state),
        lineage=build_lineage(state),
        under_skill=state.skill,
        call=call,
    )


def order_step(state: RunState, step: Step, task: TaskDefinition) -> ChildRequest:
    """Request a task step, with its placeholders filled from inputs and earlier results."""
    number = state.steps.index(step)
    definition = task.steps[number]
    above = state.started.order if state.started else None
    inputs = above.inputs if above else {}
    results = {
        name_step(done.file): NOT_KNOWN if state.is_dry_run else _result_of(state.steps[i])
        for i, done in enumerate(state.plan[:number])
    }
    limits = state.limits
    left = None if limits.max_cost_usd is None else max(0.0, limits.max_cost_usd - state.cost_usd)
    return ChildRequest(
        task=render_body(definition.body, inputs=inputs, results=results).strip() or definition.name,
        inputs=inputs,
        agent=state.plan[number].agent,
        model=above.model if above else "",
        step_of=task.id,
        step_file=definition.file.name,
        brief=render_body(task.steps[0].body, inputs=inputs, results={}).strip() if number else "",
        criteria=definition.acceptance,
        output_schema=read_output_schema(definition),
        limits=replace(limits, max_cost_usd=left, on_limit="fail"),
        lineage=build_lineage(state),
    )


def read_output_schema(step: TaskStep) -> dict[str, JsonValue] | None:
    schema = read_value(step.output_schema) if step.output_schema is not None else None
    return schema if isinstance(schema, dict) else None


def share(state: RunState, *, among: int = 1) -> Limits:
    """Return the share of the remaining budget that a child may use, leaving enough to process its result.

    Children that are started together divide it among them.
    """
    assert state.started is not None
    limits = state.limits
    turns = (limits.max_turns - state.turn - state.delegated_turns) * limits.delegation_share / among
    cost = None
    if limits.max_cost_usd is not None:
        cost = max(0.0, limits.max_cost_usd - state.cost_usd) * limits.delegation_share / among
    return replace(limits, max_turns=max(1, int(turns)), max_cost_usd=cost, on_limit="fail")


def _result_of(step: Step) -> str:
    finished = step.finished
    return finished.text if finished is not None and finished.status == "succeeded" else SKIPPED
