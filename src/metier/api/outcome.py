"""From the state of a run to a `RunResult`."""

from pathlib import Path
from typing import cast

from pydantic import JsonValue

from metier.api.output import OutputForm
from metier.api.results import Approval, Question, RunResult, Usage
from metier.engine.state import RunState
from metier.providers.known_cost import find_cost
from metier.runtime.questions.answers import list_field_names
from metier.runtime.questions.approvals import ApprovalQuestion as OpenApproval
from metier.runtime.runs import Runtime

VALUE_INVALID = "value_invalid"
"""The reason of a run that completed with a result that the Python type refuses."""


async def build_result[T](runtime: Runtime, state: RunState, form: OutputForm[T] | None) -> RunResult[T]:
    waiting = await runtime.find_waiting(state)
    asking = [step.approval_id for step in waiting.steps if step.phase == "asking"]
    folder = runtime.folder(state.run_id)
    reason, message = _explain(state, waiting)
    parsed: tuple[T] | None = None
    if state.status == "completed":
        try:
            wanted = form or _find_recorded(state)
            parsed = (cast("T", wanted.parse(state.result) if wanted is not None else None),)  # no form, no value
        except ValueError as error:
            reason, message = VALUE_INVALID, f"The result does not fit output_schema: {error}"
    return RunResult(
        run_id=state.run_id,
        status=state.status,
        text=state.result,
        usage=Usage(state.input_tokens, state.output_tokens),
        cost=find_cost(state.cost_usd, tokens=state.input_tokens + state.output_tokens),
        turns=state.turn,
        reason=reason,
        message=message,
        approvals=tuple([describe_approval(await runtime.approvals.get(each)) for each in asking]),
        question=find_question(waiting),
        waits_for=waiting.run_id if waiting.pause else "",
        folder=folder,
        artifacts=_list_artifacts(folder),
        _parsed=parsed,
    )


def _find_recorded(state: RunState) -> OutputForm[JsonValue] | None:
    """The schema that the run was started with; the Python type behind it is not on record."""
    order = state.started.order if state.started is not None else None
    schema = order.output_schema if order is not None else None
    return OutputForm(schema=schema, adapter=None) if schema is not None else None


def describe_approval(question: OpenApproval) -> Approval:
    asked, row = question.asked, question.row
    return Approval(
        approval_id=row.approval_id,
        run_id=row.run_id,
        tool=question.tool,
        arguments=question.arguments,
        risk=asked.risk if asked else "",
        reason=asked.reason if asked else "",
        justification=asked.justification if asked else "",
        preview=asked.preview if asked else "",
        expires_at=row.expires_at,
    )


def _explain(state: RunState, waiting: RunState) -> tuple[str, str]:
    if state.failure is not None:
        return state.failure.reason, state.failure.message
    return (waiting.pause.pause, waiting.pause.reason) if waiting.pause is not None else ("", "")


def find_question(waiting: RunState) -> Question | None:
    asked = waiting.question
    return Question(text=asked.question, fields=tuple(list_field_names(asked.fields))) if asked is not None else None


def _list_artifacts(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in (folder / "artifacts").rglob("*") if path.is_file()))
