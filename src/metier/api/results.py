"""Results, approvals and questions of runs, as values for Python programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pydantic import JsonValue

from metier.decisions import TaskState
from metier.errors import RunFailed


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
    """Why it failed, or the kind of its pause, in one word."""
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
