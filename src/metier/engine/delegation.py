"""Delegation: the targets that a run may delegate to, its requests for child runs, and the result of a task. Pure."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from metier.approval.judge import RUN_TASK
from metier.approval.matchers import read_value
from metier.context.control import WORKTREE, choose_specs, count_siblings, is_one_of_many
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
from metier.messages import ToolSpec
from metier.tools.schemas import SchemaCheck
from metier.values import JsonValue, StoredValue

MAX_DESCRIBED = 40
"""Number of targets that are described to the model; the others are only named."""
DESCRIPTION_CHARACTERS = 160


class InputSpec(StoredValue, frozen=True, kw_only=True):
    """One input of a task."""

    name: str
    description: str = ""
    default: str | None = None
    value_schema: dict[str, JsonValue] | None = None


class Partner(StoredValue, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    inputs: tuple[InputSpec, ...] = ()


class Partners(StoredValue, frozen=True, kw_only=True):
    agents: tuple[Partner, ...] = ()
    tasks: tuple[Partner, ...] = ()

    def find_agent(self, name: str) -> Partner | None:
        return next((agent for agent in self.agents if fold_id(agent.id) == fold_id(name)), None)

    def find_task(self, name: str) -> Partner | None:
        return next((task for task in self.tasks if fold_id(task.id) == fold_id(name)), None)

    def specs(self, control: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """Return the tools for reaching them; empty without partners."""
        found: list[ToolSpec] = []
        for spec in choose_specs(control, ("delegate", RUN_TASK)):
            known = self.agents if spec.name == "delegate" else self.tasks
            if known:
                listed = "\n".join(_describe(partner, index) for index, partner in enumerate(known))
                found.append(replace(spec, description=f"{spec.description}\n{listed}"))
        return tuple(found)


def read_inputs(task: TaskDefinition) -> tuple[InputSpec, ...]:
    found: list[InputSpec] = []
    for item in task.inputs:
        schema = read_value(item.schema) if item.schema is not None else None
        found.append(
            InputSpec(
                name=item.name,
                description=item.description,
                default=item.default,
                value_schema=schema if isinstance(schema, dict) else None,
            )
        )
    return tuple(found)


def fill_inputs(declared: tuple[InputSpec, ...], given: dict[str, JsonValue]) -> tuple[dict[str, str], list[str]]:
    """Return the inputs of a task as text, with defaults filled in, and all their problems."""
    filled: dict[str, str] = {}
    names = [item.name for item in declared]
    wrong = [f"there is no input {name!r}" for name in given if name not in names]
    for item in declared:
        if item.name not in given and item.default is None:
            wrong.append(f"input {item.name!r} is missing" + (f" ({item.description})" if item.description else ""))
            continue
        value = given.get(item.name, item.default)
        filled[item.name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if problem := _get_wrong_value(item, value):
            wrong.append(f"input {item.name!r}: {problem}")
    return filled, wrong


def _get_wrong_value(item: InputSpec, value: JsonValue) -> str:
    """Return the problem of a value. Text is parsed as JSON if the schema requires another type."""
    if item.value_schema is None:
        return ""
    check = SchemaCheck(item.name, item.value_schema)
    problem = check.get_error(value)
    if not problem or not isinstance(value, str):
        return problem
    try:
        # A task on the command line has inputs as text only. The text may be nested deeper than Python's stack.
        return check.get_error(json.loads(value))
    except (ValueError, RecursionError):
        return problem


def _describe(partner: Partner, index: int) -> str:
    if index >= MAX_DESCRIBED:
        return f"- {partner.id}"
    description = " ".join(partner.description.split())[:DESCRIPTION_CHARACTERS]
    inputs = ", ".join(item.name if item.default is None else f"{item.name}?" for item in partner.inputs)
    return f"- {partner.id}{f'({inputs})' if inputs else ''}{f': {description}' if description else ''}"


SKIPPED = "(this step was skipped)"
NOT_KNOWN = "(what this step gives is not known in a dry run)"


def is_delegation(action: ActionStep) -> bool:
    """Return True if the action's effect is another run."""
    return action.type == "delegate" or (action.type == "call_tool" and action.params.get("tool") == RUN_TASK)


def build_child_id(key: str, attempt: int) -> str:
    """Derive the child's ID from the step, so that a step that is repeated after a crash finds its run."""
    return CHILD + hashlib.sha256(f"{key}/{attempt}".encode()).hexdigest()[:24]


def wait_for(*children: str) -> RunPaused:
    reason = f"Run {children[0]} works on it" if len(children) == 1 else f"Runs {', '.join(children)} work on it"
    return RunPaused(pause="delegation", reason=reason)


def get_refusal(state: RunState, action: ActionStep, limits: Limits) -> str:
    """Return why the work may not be delegated; empty if it may."""
    ancestors = build_lineage(state)
    wanted = name_partner(action)
    # An ancestor waits for this run; delegating to it again would be endless.
    if fold_id(wanted) in {fold_id(name) for name in ancestors}:
        kind, _, name = wanted.partition(":")
        # Do not reword: journals contain this message, and a replay compares it.
        return f"{kind.capitalize()} {name!r} waits for this run already; do it yourself, or ask somebody else"
    if len(ancestors) > limits.max_delegation_depth:
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
    """List the ancestors of this run's children: its own, then the run itself."""
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


def build_agent_request(state: RunState, action: ActionStep, *, siblings: Sequence[ActionStep] = ()) -> ChildRequest:
    """Build a request to another agent. One of several concurrent children gets a share of the budget and only reads.

    A child in its own worktree may write, because its changes don't conflict with the others. `siblings` are the
    actions that start together with it.
    """
    has_worktree = _has_worktree(action)
    shares_folder = is_one_of_many(action) or any(not _has_worktree(other) for other in siblings)
    return ChildRequest(
        task=str(action.params.get("task", "")),
        agent=str(action.params.get("agent", "")),
        limits=share(state, among=max(count_siblings(action), len(siblings) + 1)),
        lineage=build_lineage(state),
        under_skill=state.skill,
        reads_only=shares_folder and not has_worktree,
        worktree=has_worktree,
    )


def _has_worktree(action: ActionStep) -> bool:
    return action.params.get("isolation") == WORKTREE


def build_task_request(state: RunState, *, task_id: str, text: str, inputs: dict[str, str]) -> ChildRequest:
    """Build a request to run a task definition with these inputs."""
    return ChildRequest(
        task=text,
        task_id=task_id,
        inputs=inputs,
        limits=share(state),
        lineage=build_lineage(state),
        under_skill=state.skill,
    )


def build_call_request(state: RunState, call: SkillCall) -> ChildRequest:
    """Build a request to call a skill's code for another skill, by the same agent, in the same task step."""
    assert state.started is not None
    request = state.started.order
    return ChildRequest(
        task=f"Call skill {call.skill!r} for skill {call.chain[-1]!r}",
        agent=state.started.agent,
        model=request.model if request is not None else "",
        step_of=request.step_of if request is not None else "",
        step_file=request.step_file if request is not None else "",
        limits=share(state),
        lineage=build_lineage(state),
        under_skill=state.skill,
        call=call,
    )


def build_step_request(state: RunState, step: Step, task: TaskDefinition) -> ChildRequest:
    """Build a request for a task step. Placeholders are replaced by inputs and earlier results."""
    number = state.steps.index(step)
    definition = task.steps[number]
    request = state.started.order if state.started else None
    inputs = request.inputs if request else {}
    results = {
        name_step(done.file): NOT_KNOWN if state.is_dry_run else _result_of(state.steps[i])
        for i, done in enumerate(state.plan[:number])
    }
    limits = state.limits
    # All of the rest, not a share: steps run one after another, and the task itself calls no model.
    left = None if limits.max_cost_usd is None else max(0.0, limits.max_cost_usd - state.cost_usd)
    return ChildRequest(
        task=render_body(definition.body, inputs=inputs, results=results).strip() or definition.name,
        inputs=inputs,
        agent=state.plan[number].agent,
        model=request.model if request else "",
        step_of=task.id,
        step_file=definition.file.name,
        brief=render_body(task.steps[0].body, inputs=inputs, results={}).strip() if number else "",
        criteria=definition.acceptance,
        output_schema=read_output_schema(definition),
        # A child fails at its limit instead of waiting for a user, so that its parent can react.
        limits=replace(limits, max_cost_usd=left, on_limit="fail"),
        lineage=build_lineage(state),
    )


def read_output_schema(step: TaskStep) -> dict[str, JsonValue] | None:
    schema = read_value(step.output_schema) if step.output_schema is not None else None
    return schema if isinstance(schema, dict) else None


def share(state: RunState, *, among: int = 1) -> Limits:
    """Return a child's share of the remaining budget. The rest is for processing its result.

    Children that start together divide the share among them.
    """
    assert state.started is not None
    limits = state.limits
    turns = (limits.max_turns - state.turn - state.delegated_turns) * limits.delegation_share / among
    cost = None
    if limits.max_cost_usd is not None:
        cost = max(0.0, limits.max_cost_usd - state.cost_usd) * limits.delegation_share / among
    # At least one turn, or the child could not answer; `get_refusal` rejects the call if none is left.
    return replace(limits, max_turns=max(1, int(turns)), max_cost_usd=cost, on_limit="fail")


def _result_of(step: Step) -> str:
    finished = step.finished
    return finished.text if finished is not None and finished.status == "succeeded" else SKIPPED


type Foreseen = dict[str, JsonValue]

_FENCED = re.compile(r"\s*```[\w-]*[ \t]*\n(.*?)\n[ \t]*```\s*", re.DOTALL)


def render_result(value: JsonValue, *, wants_json: bool) -> str:
    """Render the model's result as text: an object as JSON, and JSON without its fence."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    fenced = _FENCED.fullmatch(value) if wants_json else None
    if fenced is None:
        return value
    try:
        is_structure = isinstance(json.loads(fenced[1]), dict | list)
    except (ValueError, RecursionError):
        return value
    return fenced[1].strip() if is_structure else value


def as_json(text: str) -> str:
    """Return a result as JSON for its schema: plain words are quoted if the schema wants a string."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip()


def build_task_result(state: RunState) -> str:
    """Return the result of the last successful step; for a dry run, the merged plans of all steps."""
    if state.is_dry_run:
        return json.dumps(_join_plans(state), ensure_ascii=False, indent=2)
    given = [step.finished.text for step in state.steps if step.finished and step.finished.status == "succeeded"]
    return given[-1] if given else ""


def _join_plans(state: RunState) -> Foreseen:
    order = state.started.order if state.started else None
    plans = [_parse(step.finished.text if step.finished else "") for step in state.steps]
    # A missing plan makes the total unknown; a skipped step costs nothing.
    predicted = [
        cast("Foreseen", plan["predicted"]) if plan is not None else {}
        for plan, step in zip(plans, state.steps, strict=True)
        if plan is not None or step.finished is None or step.finished.status != "skipped"
    ]
    return {
        "mode": "dry_run",
        "task": order.task_id if order else "",
        "inputs": dict(order.inputs) if order else {},
        "steps": [
            {"file": planned.file, "name": planned.name, "agent": planned.agent, "plan": plan}
            for planned, plan in zip(state.plan, plans, strict=True)
        ],
        "predicted": {
            "input_tokens": _add(predicted, "input_tokens_per_request"),
            "cost_usd": _add(predicted, "request_cost_usd"),
            "cost_usd_at_most": _add(predicted, "request_cost_usd_at_most"),
        },
    }


def _parse(text: str) -> Foreseen | None:
    """Parse a step's plan; None if the step was skipped, or its plan was truncated."""
    try:
        plan: JsonValue = json.loads(text)
    except ValueError:
        return None
    return plan if isinstance(plan, dict) and isinstance(plan.get("predicted"), dict) else None


def _add(predicted: list[Foreseen], key: str) -> float | None:
    """Return the total of one request per step; None if a figure is unknown."""
    figures = [each.get(key) for each in predicted]
    known = [figure for figure in figures if isinstance(figure, int | float)]
    return round(sum(known), 6) if known and len(known) == len(figures) else None
