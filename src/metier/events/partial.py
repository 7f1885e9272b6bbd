"""Partial updates: text of a reply and output of a command before it is complete. Pure values."""

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct


class Partial(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a reply or of a command's output, without secrets. Shown and then forgotten: it is in no journal.

    The events that follow (`llm_response_received`, `skill_step_executed`) have the result.
    """

    kind: Literal["text", "restart", "output"]
    """`restart`: the attempt was lost; discard the text of this reply so far."""
    run_id: str = ""
    turn: int = 0
    after: int = 0
    """The `seq` of the `llm_request_sent` event whose reply the text is; 0 for output."""
    step_id: str = ""
    """The step whose output it is; empty for text."""
    text: str = ""


class PartialObserver(Struct, frozen=True, kw_only=True):
    """A receiver of partial updates. `show` is called from the event loop of the run and must not block."""

    show: Callable[[Partial], None]
    wants_text: bool = True
    """False for one that gets the text of replies by another way."""


@runtime_checkable
class PartialSink(Protocol):
    """A sink of events that also shows partial updates."""

    def show_partial(self, partial: Partial) -> None: ...
