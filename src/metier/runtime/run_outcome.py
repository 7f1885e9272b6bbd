"""The outcome of a run, local or on a server: as one JSON document, and as the value that commands format."""

import json
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, convert, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.decisions import TaskState
from metier.definitions.nearest import hint_nearest
from metier.engine.projection import list_task_steps
from metier.engine.state.run_state import Child, RunState
from metier.engine.state.steps import Step
from metier.providers.facts import load_facts
from metier.runtime.answers import ACCEPT, render_command
from metier.runtime.status import RunStatus, RunTotals
from metier.telemetry.jsonl import FILE_NAME
from metier.telemetry.sanitize import sanitize
from metier.values import dump_fields
from metier.views.user_question import DEFAULT_FIELD

MAX_CAUSE_LINES = 6
MAX_CAUSE_LINE_CHARACTERS = 240

type Plan = dict[str, JsonValue]
type Document = dict[str, Any]
"""A JSON object. `Any`, because `msgspec` can't decode pydantic's `JsonValue`."""

_ADVICE = {
    "no_skill": 'run `agent init` to create skills or `agent skills route "…"` to see matching ones, or use a model',
    "skill_timeout": "raise the skill's `timeout_seconds`, or split the task",
    "skill_blocked": "see the rejected call with `agent runs show`; change the skill's contract or the rules",
    "skill_escalated": "the skill gave up: read its message, then run it again with the missing input",
}


class TaskStepOutcome(Struct, frozen=True, kw_only=True):
    """A step of a task definition."""

    file: str
    name: str = ""
    state: str = ""


class RunOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a run so far, read from its document, which is the same on this machine and over HTTP."""

    run_id: str
    status: TaskState
    exit_code: int
    result: str
    reason: str
    """Code of the failure, or kind of the pause."""
    message: str
    """Description of the failure or the pause."""
    cause: str
    waits_for: str
    """ID of the waiting run; empty if the run isn't paused."""
    next: tuple[str, ...] = ()
    """Commands that continue the run, or advice about a failure."""
    plan: Document | None = None
    """The plan of a dry run that has ended."""
    task_steps: tuple[TaskStepOutcome, ...] = ()
    has_output_schema: bool = False
    paths: dict[str, str] = field(default_factory=dict[str, str])
    is_remote: bool = False
    """True if the run is on a server; then its folder isn't on this machine."""
    document: Document = field(default_factory=dict[str, Any])
    """The whole document, as `--json` prints it."""

    @property
    def folder(self) -> Path:
        """Return the folder of the run on the machine that drove it."""
        return Path(self.paths["folder"])

    @property
    def has_failed(self) -> bool:
        return not self.waits_for and self.reason != ""


def read_outcome(document: Document) -> RunOutcome:
    """Read the document of a run. Raises `msgspec.ValidationError` if it is invalid."""
    return replace(convert(document, RunOutcome), document=document)


def build_outcome(status: RunStatus, *, folder: Path, exit_code: int) -> RunOutcome:
    order = status.state.started.order if status.state.started else None
    # Through the document, so that a local run and one of a server are read by the same code.
    outcome = read_outcome(_build_document(status, folder=folder, exit_code=exit_code))
    return replace(outcome, has_output_schema=order is not None and order.output_schema is not None)


def _build_document(status: RunStatus, *, folder: Path, exit_code: int) -> Document:
    state, plan = status.state, parse_plan(status.state)
    return {
        "run_id": state.run_id,
        "status": state.status,
        "exit_code": exit_code,
        # The result of a dry run is its plan, which has a key of its own.
        "result": state.result if plan is None else "",
        **({} if plan is None else {"plan": plan}),
        "reason": status.reason,
        "message": status.message,
        "cause": "\n".join(last_lines(status.cause)),
        "waits_for": status.waits_for,
        "approvals": [_approval_as_json(step) for step in status.open_steps],
        "next": list(list_next(status)),
        **work_as_json(status),
        **totals_as_json(status.totals),
        "paths": {
            "folder": str(folder),
            "events": str(folder / FILE_NAME),
            "record": str(folder / "run.json"),
            "artifacts": str(folder / "artifacts"),
        },
    }


def totals_as_json(totals: RunTotals) -> dict[str, JsonValue]:
    return {
        "turns": totals.turns,
        "usage": {"input_tokens": totals.input_tokens, "output_tokens": totals.output_tokens},
        "cost_usd": totals.known_cost_usd,
    }


def list_next(status: RunStatus) -> tuple[str, ...]:
    """List the commands that continue the run, and advice about a failure."""
    # A paused run may also have a failed child, so commands and advice can name the same step.
    waiting = _list_commands(status) if status.pause else ()
    advice = _get_advice(status.failed or status.state, status.run_id)
    return tuple(dict.fromkeys((*waiting, *([advice] if advice else []))))


def _list_commands(status: RunStatus) -> tuple[str, ...]:
    resume = f"agent resume {status.run_id}"
    match status.pause:
        case "approval":
            return (*(f"agent approve {approval}" for approval in status.approval_ids), resume)
        case "input":
            names = status.question.required_names if status.question is not None else (DEFAULT_FIELD,)
            return (f"{resume} {' '.join(f'--input {name}=…' for name in names)}",)
        case "in_doubt":
            return (f"{resume} --answer done|retry|skip|abort",)
        case "changed_code":
            return (f"{resume} {ACCEPT}",)
        case "limit":
            return (render_command(status.waiting, status.run_id),)
        case "step_failed":
            return (f"{resume} [--answer skip|abort]",)
        case _:
            return (resume,)


def _get_advice(failed: RunState, run_id: str) -> str:
    """Return advice for continuing `run_id`, which ended by the failure of `failed`: itself or a descendant."""
    if failed.failure is None:
        return ""
    if failed.failure.reason == "not_found":
        return _advise_model(failed, run_id)
    if failed.failure.reason == "prompt_too_large":
        return f"raise `model.max_context_tokens` in agent.yaml or offer fewer tools, then run `agent resume {run_id}`"
    return render_command(failed, run_id) or _ADVICE.get(failed.failure.reason, "")


def _advise_model(failed: RunState, run_id: str) -> str:
    """Suggest the provider's model whose name is nearest to the unknown one."""
    started = failed.started
    # The names are patterns: one that ends with `*` is about a family of models.
    known = [name.rstrip("*") for name in load_facts().entries.get(started.provider, {})] if started else []
    hint = hint_nearest(started.model, [name for name in known if name]) if started else ""
    return f"{hint or 'Check the name of the model.'} Run `agent resume {run_id} --model NAME`"


def _approval_as_json(step: Step) -> JsonValue:
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


def work_as_json(status: RunStatus) -> dict[str, JsonValue]:
    """Build the inputs, task steps and children of a run. Missing ones are left out."""
    state = status.state
    order = state.started.order if state.started else None
    work: dict[str, JsonValue] = {}
    if order is not None and order.inputs:
        work["inputs"] = dict(order.inputs)
    if order is not None and order.call is not None:
        work["call"] = {"skill": order.call.skill, "chain": list(order.call.chain)}
    if state.plan:
        work["task_steps"] = [dump_fields(step) for step in list_task_steps(state)]
    if state.children:
        work["children"] = [
            {
                "run_id": child.run_id,
                "step_id": child.step_id,
                "agent": child.agent,
                "task": child.task,
                "skill": child.skill,
                "status": _child_status(child, status),
            }
            for child in state.children
        ]
    return work


def describe_work(outcome: RunOutcome) -> list[str]:
    """Describe the inputs, task steps and children of a run, one per line."""
    document = outcome.document
    lines = [f"input:   {name} = {value}" for name, value in document.get("inputs", {}).items()]
    if call := document.get("call"):
        lines.append(f"skill:   {call['skill']}, called for {' → '.join(call['chain'])}")
    lines += [f"step:    {step.file}  {step.state}  {step.name}".rstrip() for step in outcome.task_steps]
    for child in document.get("children", []):
        who = f"skill {child['skill']}" if child["skill"] else child["agent"] or "built-in"
        lines.append(f"child:   {child['run_id']}  {child['status']}  {who}")
    return lines


def _child_status(child: Child, status: RunStatus) -> str:
    """Return the status from the journal, or from the index until the child's siblings have ended too."""
    return child.status if child.status != "pending" else status.child_statuses.get(child.run_id, "open")


def last_lines(text: str) -> list[str]:
    """Return the last lines of a program's output, which usually report its error, truncated and sanitized."""
    lines = [line for line in sanitize(text).splitlines() if line.strip()][-MAX_CAUSE_LINES:]
    return [
        line if len(line) <= MAX_CAUSE_LINE_CHARACTERS else f"{line[:MAX_CAUSE_LINE_CHARACTERS]}…" for line in lines
    ]


def parse_plan(state: RunState) -> Plan | None:
    """Return the plan of a dry run that has ended; None for any other run."""
    if state.started is None or state.started.mode != "dry_run" or not state.result:
        return None
    return cast("Plan", json.loads(state.result))  # written by `engine.model.dry_run` or `engine.task_result`
