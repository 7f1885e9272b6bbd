"""Results, approvals and questions of runs as values for Python programs, and how they are built from a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import cast

from pydantic import JsonValue, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from metier.decisions import TaskState
from metier.engine.state.run_state import RunState
from metier.errors import RunFailed, UsageError
from metier.providers.facts import find_cost
from metier.runtime.approval_questions import ApprovalQuestion as OpenApproval
from metier.runtime.runs import Runtime
from metier.runtime.status import get_status
from metier.tools.schemas import MAX_THREAD_STEPS, SchemaCheck
from metier.views.user_question import UserQuestion

VALUE_INVALID = "value_invalid"
"""The reason of a completed run whose result does not fit the Python type."""


# Public values stay dataclasses: programs use `dataclasses.replace` and `asdict` on them.
@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a run used, without its child runs."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A call that waits for a decision: the exact arguments and their effect."""

    approval_id: str
    run_id: str
    tool: str
    arguments: Mapping[str, JsonValue]
    risk: str = ""
    reason: str = ""
    """The rule that asks."""
    justification: str = ""
    """The model's reason for the call."""
    preview: str = ""
    """A diff or a sentence; empty if the tool has no preview."""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision on an `Approval` with details."""

    approved: bool
    reason: str = ""
    """The model reads it if the call is denied."""
    arguments: Mapping[str, JsonValue] | None = None
    """Approve the call with these arguments instead."""
    remember: bool = False
    """Do not ask about this tool again in the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a run, for `Agent.answer`."""

    text: str
    fields: tuple[str, ...]
    """The names of the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult[T]:
    """The outcome of a run that ended or waits for an approval or an answer.

    A run that failed is a result too; `raise_for_status` turns it into an exception.
    """

    run_id: str
    status: TaskState
    """`completed`, `failed`, `canceled`, `blocked`, `timeout`, or `paused` and `input_required` while it waits."""
    text: str = ""
    """The final answer."""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """US dollars; None if the model's price is unknown."""
    turns: int = 0
    reason: str = ""
    """Code of the failure, or kind of the pause."""
    message: str = ""
    """The same in one sentence."""
    approvals: tuple[Approval, ...] = ()
    """Decide each with `Agent.approve` or `Agent.deny`, then continue with `Agent.resume`."""
    question: Question | None = None
    """Answer it with `Agent.answer`."""
    waits_for: str = ""
    """The ID of the waiting run: this one or a child run."""
    folder: Path
    """The folder with the event log, the record and the artifacts."""
    artifacts: tuple[Path, ...] = ()
    """The files that the run created for its caller."""
    _parsed: tuple[T] | None = field(default=None, repr=False)
    """The value in a tuple, because the value may be None itself; None without a value."""

    @property
    def ok(self) -> bool:
        return self.status == "completed" and not self.reason

    @property
    def value(self) -> T:
        """The result in the form of `output_schema`; None without one. Raises `RunFailed` if the run has no result."""
        if self._parsed is None:
            raise self._build_failure()
        return self._parsed[0]

    def raise_for_status(self) -> "RunResult[T]":
        """Return this result if the run completed. Raises `RunFailed` if it failed or waits."""
        if not self.ok:
            raise self._build_failure()
        return self

    def _build_failure(self) -> RunFailed:
        why = f": {self.message}" if self.message else ""
        return RunFailed(f"Run {self.run_id} is {self.status}{why}", run_id=self.run_id, reason=self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm[T]:
    """The requested form of a result. Created by `read_form`."""

    schema: dict[str, JsonValue]
    adapter: TypeAdapter[T] | None
    """Converts JSON to the Python type; None if only a schema was given."""

    def parse(self, text: str) -> T:
        """Parse a result. Raises `ValueError` with what is wrong with it."""
        if self.adapter is not None:
            try:
                return self.adapter.validate_json(text)
            except ValidationError as error:
                raise ValueError(_describe(error)) from error
        try:
            value: JsonValue = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON: {error}") from error
        # The limit of the run's own check: a result that passed there must not fail here.
        if wrong := SchemaCheck("output_schema", self.schema).get_error(value, steps=MAX_THREAD_STEPS):
            raise ValueError(wrong)
        return cast("T", value)  # without an adapter the value is JSON


def read_form[T](given: type[T] | Mapping[str, object] | None) -> OutputForm[T] | None:
    """Build the form of a schema or type; None for None. Raises `UsageError` if it has no valid JSON schema."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        form: OutputForm[T] = OutputForm(schema=cast("dict[str, JsonValue]", dict(given)), adapter=None)
    else:
        try:
            adapter = TypeAdapter(given)
            form = OutputForm(schema=cast("dict[str, JsonValue]", adapter.json_schema()), adapter=adapter)
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            raise UsageError(f"{given!r} cannot be the output_schema of a run: {error}") from error
    # Before the run starts: an invalid schema must not cost a model call.
    SchemaCheck("output_schema", form.schema)
    return form


def _describe(error: ValidationError) -> str:
    wrong = [f"{each['msg']} (at {'.'.join(map(str, each['loc'])) or 'the top'})" for each in error.errors()]
    return "; ".join(wrong)


async def build_result[T](runtime: Runtime, state: RunState, form: OutputForm[T] | None) -> RunResult[T]:
    status = await get_status(runtime.store, state)
    folder = runtime.folder(state.run_id)
    reason, message = status.reason, status.message
    parsed: tuple[T] | None = None
    if state.status == "completed":
        try:
            wanted = form or _find_recorded(state)
            parsed = (
                cast("T", wanted.parse(state.result) if wanted is not None else None),
            )  # without a form there is no value
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
        approvals=tuple([describe_approval(await runtime.approvals.get(each)) for each in status.approval_ids]),
        question=describe_question(status.question),
        waits_for=status.waits_for,
        folder=folder,
        artifacts=tuple(sorted(path for path in (folder / "artifacts").rglob("*") if path.is_file())),
        _parsed=parsed,
    )


def _find_recorded(state: RunState) -> OutputForm[JsonValue] | None:
    """Return the schema that the run was started with. The journal does not have the Python type."""
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


def describe_question(question: UserQuestion | None) -> Question | None:
    return Question(text=question.text, fields=question.names) if question is not None else None
