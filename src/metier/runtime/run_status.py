"""The status of a run for its caller: exit code, result, and the work of its steps and children."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct, field
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.engine.projection import list_task_steps
from metier.engine.state.run_state import Child, RunState
from metier.engine.state.steps import Step
from metier.providers.cost import find_cost
from metier.providers.failures import list_reasons
from metier.runtime.child_runs import find_failed, get_cause
from metier.runtime.records.signatures import issue_token
from metier.runtime.runs import Runtime
from metier.telemetry.jsonl import FILE_NAME
from metier.telemetry.sanitize import sanitize

DONE, FAILED, APPROVAL, INPUT, DENIED, BUDGET, LIMIT, PROVIDER = 0, 1, 3, 4, 5, 6, 7, 8
SIGNALS = {"SIGHUP": 129, "SIGINT": 130, "SIGQUIT": 131, "SIGTERM": 143, "SIGBREAK": 143}

_BY_REASON = {
    "max_turns_exceeded": LIMIT,
    "run_timeout": LIMIT,
    "budget_exceeded": BUDGET,
    "prompt_too_large": BUDGET,
    "denied": DENIED,
}
_BY_PAUSE = {"approval": APPROVAL, "input": INPUT, "in_doubt": INPUT, "changed_code": INPUT}

MAX_LINES_TOLD = 6
"""Of what a failed step said."""
MAX_LINE_TOLD = 240


def get_exit_code(state: RunState, *, signal: str = "") -> int:
    """`signal` is the one that this process got, if it got one."""
    if state.pause is not None:
        code = BUDGET if state.pause.limit == "max_cost_usd" else LIMIT if state.pause.limit else 0
        return code or _BY_PAUSE.get(state.pause.pause) or SIGNALS.get(signal, FAILED)
    if state.failure is None:
        return DONE if state.status == "completed" else FAILED
    if state.failure.reason in list_reasons():
        return PROVIDER
    return _BY_REASON.get(state.failure.reason, DENIED if state.status == "blocked" else FAILED)


def work_as_json(state: RunState, standing: Mapping[str, str]) -> dict[str, JsonValue]:
    """Nothing for a run that has neither. `standing`: how the runs stand that have not ended here, by the index."""
    told: dict[str, JsonValue] = {}
    if state.plan:
        told["task_steps"] = [step.model_dump(mode="json") for step in list_task_steps(state)]
    if state.children:
        told["children"] = [
            {
                "run_id": child.run_id,
                "step_id": child.step_id,
                "agent": child.agent,
                "task": child.task,
                "skill": child.skill,
                "status": _find_status(child, standing),
            }
            for child in state.children
        ]
    return told


def describe_work(state: RunState, standing: Mapping[str, str]) -> list[str]:
    order = state.started.order if state.started else None
    lines = [f"input:   {name} = {value}" for name, value in order.inputs.items()] if order else []
    if order is not None and order.call is not None:
        lines.append(f"skill:   {order.call.skill}, called for {' → '.join(order.call.chain)}")
    lines += [f"step:    {step.file}  {step.state}  {step.name}".rstrip() for step in list_task_steps(state)]
    for child in state.children:
        status = _find_status(child, standing)
        who = f"skill {child.skill}" if child.skill else child.agent or "built-in"
        lines.append(f"child:   {child.run_id}  {status}  {who}")
    return lines


def _find_status(child: Child, standing: Mapping[str, str]) -> str:
    """The end of a child is in the journal of its parent when all that began with it have ended."""
    return child.status if child.status != "pending" else standing.get(child.run_id, "open")


type Plan = dict[str, JsonValue]


class Driven(Struct, frozen=True, kw_only=True):
    """How a run stands when this process has released it."""

    state: RunState
    waiting: RunState
    """The run that is waited for: the same one, or one that it handed work to."""
    folder: Path
    failed: RunState | None = None
    """The run that failed where the other one did because of it: the same one, or one below."""
    token: str = ""
    """For `resume --token`; empty where the run does not wait."""
    others: tuple[RunState, ...] = ()
    """Further runs below it that wait at the same time."""
    standing: Mapping[str, str] = field(default_factory=dict[str, str])
    """How its children stand that have no end in its journal, by their ids."""

    @property
    def cause(self) -> str:
        """What a step that failed gave back."""
        return get_cause(self.failed)

    def find_exit_code(self, *, signal: str = "") -> int:
        """That of the run that is waited for; a task that stopped at a step ends as the step did."""
        code = get_exit_code(self.waiting, signal=signal)
        return (get_exit_code(self.failed) or FAILED) if code == FAILED and self.failed is not None else code


async def find_standing(runtime: Runtime, state: RunState) -> Driven:
    """How a run stands, with the runs below it that it waits for or failed by."""
    every = await runtime.find_all_waiting(state)
    waiting = await runtime.find_waiting(state)
    failed = await find_failed(runtime.store, waiting)
    token = issue_token(runtime.place, state, waiting=waiting)
    rows = [await runtime.store.find_run(child.run_id) for child in state.children if child.status == "pending"]
    return Driven(
        state=state,
        waiting=waiting,
        folder=runtime.folder(state.run_id),
        failed=failed,
        token=token,
        others=tuple(each for each in every if each.run_id != waiting.run_id),
        standing={row.run_id: row.status for row in rows if row is not None},
    )


def build_outcome(driven: Driven, *, exit_code: int) -> dict[str, JsonValue]:
    state, waiting, folder = driven.state, driven.waiting, driven.folder
    plan = parse_plan(state)
    return {
        "run_id": state.run_id,
        "status": state.status,
        "exit_code": exit_code,
        "result": state.result if plan is None else "",
        **({} if plan is None else {"plan": plan}),
        "reason": state.failure.reason if state.failure else waiting.pause.pause if waiting.pause else "",
        "message": state.failure.message if state.failure else waiting.pause.reason if waiting.pause else "",
        "cause": "\n".join(find_last_lines(driven.cause)),
        "waits_for": waiting.run_id if waiting.pause else "",
        "approvals": [
            _approval(step) for run in (waiting, *driven.others) for step in run.steps if step.phase == "asking"
        ],
        **work_as_json(state, driven.standing),
        "turns": state.total_turns,
        "usage": {"input_tokens": state.input_tokens, "output_tokens": state.output_tokens},
        "cost_usd": find_cost(state.cost_usd, tokens=state.input_tokens + state.output_tokens),
        "paths": {
            "folder": str(folder),
            "events": str(folder / FILE_NAME),
            "record": str(folder / "run.json"),
            "artifacts": str(folder / "artifacts"),
        },
    }


def _approval(step: Step) -> JsonValue:
    tool, arguments = name_call(step.action)
    asked = step.asked
    assert asked is not None
    return {
        "approval_id": asked.approval_id,
        "tool": tool,
        "arguments": arguments,
        "hash": asked.arguments_hash,
        "reason": asked.reason,
        "justification": asked.justification,
        "preview": asked.preview,
        "expires_at": asked.expires_at,
    }


def find_last_lines(text: str) -> list[str]:
    """Where a program says what went wrong, bounded and safe to show."""
    lines = [line for line in sanitize(text).splitlines() if line.strip()][-MAX_LINES_TOLD:]
    return [line if len(line) <= MAX_LINE_TOLD else f"{line[:MAX_LINE_TOLD]}…" for line in lines]


def parse_plan(state: RunState) -> Plan | None:
    """The plan of a dry run that reached its end; None for every other run."""
    if state.started is None or state.started.mode != "dry_run" or not state.result:
        return None
    return cast("Plan", json.loads(state.result))  # written by `dry_run_reply` or `task_result` of the engine
