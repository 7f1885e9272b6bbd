"""The text of an arriving reply: redacted and split into blocks. Replies that are JSON decisions are hidden."""

from collections import deque

from metier.telemetry.live_text import LiveText
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import sanitize
from metier.views.blocks import BlockSplitter

_JSON_STARTS = ("{", "```json")
MAX_TAIL_LINES = 5


class OutputTail:
    """The last lines of a running program's output."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_TAIL_LINES)
        self._rest = ""

    def add(self, text: str) -> None:
        # The driver redacted it, but a watcher reads it from a file that others could have written.
        *lines, self._rest = sanitize(self._rest + text).split("\n")
        self._lines.extend(line for line in lines if line.strip())

    def list_lines(self, most: int) -> list[str]:
        lines = [*self._lines, self._rest] if self._rest.strip() else [*self._lines]
        return lines[-most:]


class TextStream:
    """One reply. Takes the model's text and returns it without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._stream = LiveText(redactor)
        self._blocks = BlockSplitter()
        self._ready: list[str] = []
        self.shown = ""
        """Text shown so far."""
        self.has_printed = False
        """Return True if blocks were returned for printing."""

    @property
    def rest(self) -> str:
        """Return the incomplete block."""
        return "" if self._is_decision() else self._blocks.rest

    def feed(self, text: str) -> str:
        """Return the text that can be shown now, without secrets and control characters."""
        return self._take(self._stream.feed(text))

    @property
    def is_holding(self) -> bool:
        """Return True while arrived text is held back."""
        return self._stream.is_holding

    def pause(self) -> str:
        """Return held-back text that can be shown because nothing followed it for a moment."""
        return self._take(self._stream.pause())

    def close(self) -> str:
        return self._take(self._stream.close())

    def take_blocks(self, *, is_end: bool = False) -> list[str]:
        """Return the complete blocks; at the end of the reply also the last one."""
        if self._is_decision():
            return []
        ready, self._ready = self._ready, []
        if is_end:
            ready += self._blocks.close()
        self.has_printed = self.has_printed or bool(ready)
        return ready

    def _take(self, clean: str) -> str:
        self.shown += clean
        self._ready += self._blocks.feed(clean)
        return clean

    def _is_decision(self) -> bool:
        """Return True for a JSON decision, whose steps are shown instead."""
        return self.shown.lstrip().startswith(_JSON_STARTS)
