"""Progress of a running run on stderr: its view, or with `--events` one line per event."""

import asyncio
import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from msgspec import to_builtins

from metier.events.partial import Partial, PartialObserver
from metier.events.record import EventRecord, render_record
from metier.providers.base import Delta
from metier.telemetry.console import ConsoleSink
from metier.telemetry.options import LogLevel
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import escape_json
from metier.telemetry.sinks import Sink
from metier.views.live import LiveRun, TextStream
from metier.views.painter import PlainPainter, TerminalPainter, build_painter, can_move

EVENTS = 2
"""The verbosity at which a line per event replaces the view."""
FRAME_SECONDS = 0.1
"""Time between two frames of the spinner."""
TEXT_SECONDS = 0.04
"""Time between two frames while text arrives. Text is shown as soon as it cannot be the start of a secret."""


class Shown(Protocol):
    """A sink that also observes the text of the reply."""

    def write(self, record: EventRecord) -> None: ...

    def observe(self, delta: Delta) -> None: ...

    def close(self) -> None: ...


class EventLines:
    """Writes a line per event, and at a terminal also the text of a reply while it arrives."""

    def __init__(self, stream: TextIO, redactor: Redactor, *, level: LogLevel = "info") -> None:
        self._stream = stream
        self._console = ConsoleSink(stream, level=level)
        self._redactor = redactor
        self._text = TextStream(redactor)
        self._is_terminal = stream.isatty()
        self._is_open = False

    def write(self, record: EventRecord) -> None:
        # The reply is over, so text that was held back as the possible start of a secret can be shown.
        if record.event_type in ("llm_response_received", "llm_request_failed"):
            self._show(self._text.close())
            self._text = TextStream(self._redactor)
        self._end_line()
        self._console.write(record)

    def close(self) -> None:
        self._end_line()
        self._console.close()

    def observe(self, delta: Delta) -> None:
        if not self._is_terminal or delta.kind == "thinking":
            return
        # The request is sent again: text that was held back belongs to the dropped reply.
        if delta.kind == "restart":
            self._text = TextStream(self._redactor)
            self._end_line()
        else:
            self._show(self._text.feed(delta.text))

    def _show(self, text: str) -> None:
        if text and self._is_terminal:
            # Text has no line end for a while, so a buffered stream would not show it.
            self._stream.write(text)
            self._stream.flush()
            self._is_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_open:
            self._stream.write("\n")
            self._is_open = False


class Ticker:
    """Animates the spinner of a live run on the run's event loop, while the run is busy."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._next = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._tick)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _tick(self) -> None:
        if self._live.is_busy:
            self._live.tick()
        # Scheduled after the frame was written, so that a slow terminal does not pile up frames.
        delay = TEXT_SECONDS if self._live.is_reading else FRAME_SECONDS
        self._next = asyncio.get_running_loop().call_later(delay, self._tick)


@contextmanager
def ticking(shown: Sink | None) -> Generator[None]:
    """Animate the live region inside the block."""
    live = shown.live if isinstance(shown, ShownRun) else shown
    if not (isinstance(live, LiveRun) and live.is_live):
        yield
        return
    ticker = Ticker(live)
    ticker.start()
    try:
        yield
    finally:
        ticker.stop()


def build_live(redactor: Redactor, *, verbosity: int, is_text: bool) -> LiveRun:
    """Build the view of a run on stderr. It streams text only if stdout is the same terminal."""
    shows_text = is_text and can_move(sys.stderr) and sys.stdout.isatty()
    return LiveRun(build_painter(sys.stderr), redactor, verbosity=verbosity, shows_text=shows_text)


class ShownRun:
    """Shows a run on stdout that this process does not drive: steps, then the answer and the closing line."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.answer = ""
        """The whole result. Events have only its start."""

    def show_partial(self, partial: Partial) -> None:
        if self.live.is_live:
            self.live.show_partial(partial)

    def write(self, record: EventRecord) -> None:
        self.live.write(record)

    def close(self) -> None:
        self.live.finish(self.answer or self.live.view.answer)
        self.live.close()


def write_answer(text: str) -> None:
    """Write the redacted answer to stdout: rendered Markdown at a terminal, plain text elsewhere."""
    painter = TerminalPainter(sys.stdout) if can_move(sys.stdout) else PlainPainter(sys.stdout)
    painter.print(painter.markdown(text))
    painter.close()


class JsonLines:
    """Writes every event as a JSON line; `with_partials` adds partial updates as `"type": "partial"`."""

    def __init__(self, stream: TextIO, *, with_partials: bool = False) -> None:
        self._stream = stream
        self._with_partials = with_partials

    @property
    def partials(self) -> Sequence[PartialObserver]:
        return [PartialObserver(show=self.show_partial)] if self._with_partials else []

    def show_partial(self, partial: Partial) -> None:
        if self._with_partials:
            line = {"type": "partial", **to_builtins(partial)}
            self._stream.write(escape_json(json.dumps(line, ensure_ascii=False)) + "\n")
            self._stream.flush()

    def write(self, record: EventRecord) -> None:
        # Each line is flushed: programs read the events of a run while it works.
        self._stream.write(escape_json(render_record(record).decode()) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.flush()
