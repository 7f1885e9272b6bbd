"""What a person sees while a run is driven: events line by line, and the text of a reply while it grows. On stderr."""

from typing import TextIO

from metier.event_record import EventRecord
from metier.providers.base import Delta
from metier.telemetry.console import ConsoleSink
from metier.telemetry.options import LogLevel
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import escape_json, sanitize


class LiveView:
    """A sink and an observer on one stream; a line of text that is still open is closed before an event is shown.

    Text is shown on a terminal only: elsewhere no person watches it grow, and the events tell what it came to.
    """

    def __init__(self, stream: TextIO, redactor: Redactor, *, level: LogLevel = "info") -> None:
        self._stream = stream
        self._console = ConsoleSink(stream, level=level)
        self._redactor = redactor
        self._text = redactor.stream()
        self._is_terminal = stream.isatty()
        self._is_open = False

    def write(self, record: EventRecord) -> None:
        if record.event_type in ("llm_response_received", "llm_request_failed"):
            self._show(self._text.close())
            self._text = self._redactor.stream()
        self._end_line()
        self._console.write(record)

    def close(self) -> None:
        self._end_line()
        self._console.close()

    def observe(self, delta: Delta) -> None:
        if not self._is_terminal or delta.kind == "thinking":
            return
        if delta.kind == "restart":
            self._text = self._redactor.stream()
            self._end_line()
        else:
            self._show(self._text.feed(delta.text))

    def _show(self, text: str) -> None:
        if text:
            self._stream.write(sanitize(text))
            self._stream.flush()
            self._is_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_open:
            self._stream.write("\n")
            self._is_open = False


class JsonLines:
    """Every event as one line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, record: EventRecord) -> None:
        self._stream.write(escape_json(record.model_dump_json()) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.flush()
