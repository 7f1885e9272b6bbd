"""The entry about hooks: what the user's commands said at one moment of a run. Part of the union in `entries`.

It is written after the commands have ended, and it is all that `decide` and a replay know of them. Pure values.
"""

from typing import Literal

from pydantic import Field, JsonValue

from metier.engine.entry_types.undo import FileChange
from metier.messages import Value
from metier.tools.hooks.definition import HookEvent
from metier.tools.hooks.protocol import HookDecision, HookStatus


class HookOutcome(Value):
    """One command of the moment."""

    command: str
    source: str = ""
    status: HookStatus = "ok"
    decision: HookDecision = ""
    exit_code: int | None = None
    message: str = ""
    """What it says to the user; of one that failed, why."""
    ignored: str = ""
    """What it wanted and cannot have."""
    duration_ms: float = 0


class HooksRan(Value):
    """Every command of one moment ran; what they said together."""

    kind: Literal["hooks_ran"] = "hooks_ran"
    event: HookEvent
    step_id: str = ""
    """The step that it is about; empty where the run as a whole is meant."""
    outcomes: tuple[HookOutcome, ...] = ()
    decision: HookDecision = ""
    """The strictest of theirs."""
    reason: str = ""
    context: str = ""
    """What the model is told."""
    updated_input: dict[str, JsonValue] | None = None
    """The arguments that the call has from now on. They are judged like those of the model."""
    changes: tuple[FileChange, ...] = Field(default=(), exclude_if=lambda changes: not changes)
    """What they made of the file that the step had written, such as a formatter does."""
