"""Results of runs, for the program that started them. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pydantic import JsonValue

from metier.decisions import TaskState
from metier.errors import RunFailed


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a run used, those of its child runs not among them."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A call that waits for a decision: the exact arguments, and what they would change."""

    approval_id: str
    run_id: str
    tool: str
    arguments: Mapping[str, JsonValue]
    risk: str = ""
    reason: str = ""
    """Why the rules ask."""
    justification: str = ""
    """The model's own reason for the call."""
    preview: str = ""
    """A diff, or a sentence; empty where the tool has none."""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An answer to an `Approval`, where `True` or `False` says too little."""

    approved: bool
    reason: str = ""
    """The model reads it where the call is denied."""
    arguments: Mapping[str, JsonValue] | None = None
    """Approve the call with these arguments instead."""
    remember: bool = False
    """Do not ask about this tool again in the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a run; `Agent.answer` answers it."""

    text: str
    fields: tuple[str, ...]
    """The names of what is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult[T]:
    """The state of a run: it ended, or it waits for an approval or an answer.

    A run that failed is a result too; `raise_for_status` turns it into an exception.
    """

    run_id: str
    status: TaskState
    """`completed`, `failed`, `canceled`, `blocked`, `timeout`, or `paused` and `input_required` while it waits."""
    text: str = ""
    """The run's final answer."""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """US dollars; None where the price of the model is not known."""
    turns: int = 0
    reason: str = ""
    """Why it failed, or what kind of thing it waits for, in one word."""
    message: str = ""
    """The same in one sentence."""
    approvals: tuple[Approval, ...] = ()
    """Decide each with `Agent.approve` or `Agent.deny`, then continue with `Agent.resume`."""
    question: Question | None = None
    """Answer it with `Agent.answer`."""
    waits_for: str = ""
    """The id of the run that waits: this one, or a child run."""
    folder: Path
    """Folder of the run's event log, record and artifacts."""
    artifacts: tuple[Path, ...] = ()
    """The files that it made for the caller."""
    _parsed: tuple[T] | None = field(default=None, repr=False)
    """The value in a tuple of one; None where there is none."""

    @property
    def ok(self) -> bool:
        return self.status == "completed" and not self.reason

    @property
    def value(self) -> T:
        """The result as `output_schema` wants it; None for a run without one. Raises `RunFailed` where it has none."""
        if self._parsed is None:
            raise self._build_failure()
        return self._parsed[0]

    def raise_for_status(self) -> "RunResult[T]":
        """The result itself where the run is completed. Raises `RunFailed` where it failed or waits."""
        if not self.ok:
            raise self._build_failure()
        return self

    def _build_failure(self) -> RunFailed:
        why = f": {self.message}" if self.message else ""
        return RunFailed(f"Run {self.run_id} is {self.status}{why}", run_id=self.run_id, reason=self.reason)
