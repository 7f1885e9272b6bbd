"""Partial updates of a run, for the process that drives it and for others.

The driver of a run has one `PartialStream`. It takes the text of replies and the output of programs as they arrive,
redacts secrets, and passes `events.partial.Partial` values to the observers in `DriveOptions.partials`.

A run that a worker drives also writes them to `runs/<run_id>/partial.jsonl` for other processes on this machine, which
get them in order with the events from `history.follower.Follower.look()`. A large file is truncated when a new reply
or output starts, and deleted when the driver releases the run. A reader on another machine gets events only.
"""

import asyncio
import codecs
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metier.events.model import LlmRequestFailed, LlmRequestSent, LlmResponseReceived
from metier.events.partial import Partial, PartialObserver
from metier.events.record import EventRecord
from metier.events.step import SkillStepExecuted
from metier.providers.base import Delta
from metier.telemetry.live_text import LiveText
from metier.telemetry.redaction import Redactor

FILE_NAME = "partial.jsonl"
MAX_FILE_BYTES = 1 << 20
RESTART_BYTES = 1 << 16
"""Size above which the file is truncated when the next reply or output starts. Slow readers can catch up below it."""
PAUSE_SECONDS = 0.1
"""Time to wait for the rest of a word before it is shown."""
OUTPUT_SECONDS = 0.1
"""Minimum interval between two updates of the output of one stream."""
OUTPUT_CPU_SHARE = 0.1
"""Redacting output takes at most this share of a core: it happens on the event loop of the run."""
MAX_OUTPUT_BYTES = 16_384
"""Maximum size of the output in one update. Of more output, only the end is shown."""
MAX_SHOWN_CHARACTERS = 4_096
"""Limit of an update after skipped output. The text before it may contain the rest of a secret, so it is hidden."""


class _OutputStream:
    """Standard output or standard error of one step, redacted separately: the other stream could split a secret."""

    def __init__(self, redactor: Redactor, show: Callable[[str], None]) -> None:
        self._redactor = redactor
        self._show = show
        self._pending = bytearray()
        self._has_skipped = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_update = 0.0
        self._restart()

    def _restart(self) -> None:
        self._text = LiveText(self._redactor)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, chunk: bytes) -> None:
        self._pending += chunk
        # Truncate only at four times the limit: doing it for every chunk would make a flood of output quadratic.
        if len(self._pending) > 4 * MAX_OUTPUT_BYTES:
            self._skip()
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._next_update - time.monotonic()), self._update)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _skip(self) -> None:
        del self._pending[:-MAX_OUTPUT_BYTES]
        self._has_skipped = True

    def _update(self) -> None:
        self._timer = None
        began, has_more = time.monotonic(), bool(self._pending)
        # Without new output, the timer was set to show a word that was held back.
        if shown := self._take() if has_more else self._text.pause():
            self._show(shown)
        ended = time.monotonic()
        self._next_update = ended + max(OUTPUT_SECONDS, (ended - began) / OUTPUT_CPU_SHARE)
        if has_more and self._text.is_holding:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._update)

    def _take(self) -> str:
        if len(self._pending) > MAX_OUTPUT_BYTES:
            self._skip()
        has_skipped, self._has_skipped = self._has_skipped, False
        if has_skipped:
            self._restart()
            # Start at a line: the skipped text may end within a secret.
            del self._pending[: self._pending.find(b"\n") + 1]
        # Progress bars rewrite a line after a carriage return. Show each state as a line of its own.
        data = bytes(self._pending).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._pending.clear()
        shown = self._text.feed(self._decoder.decode(data))
        return shown[-MAX_SHOWN_CHARACTERS:] if has_skipped else shown


class PartialStream:
    """The partial updates of one run. A sink of its events and an observer of its replies and programs."""

    def __init__(self, run_id: str, redactor: Redactor, observers: Sequence[PartialObserver]) -> None:
        self._run_id = run_id
        self._redactor = redactor
        self._observers = observers
        self.wants_text = any(each.wants_text for each in observers)
        self._text = LiveText(redactor)
        self._request = Partial(kind="text", run_id=run_id)
        """Template for updates of the current reply."""
        self._timer: asyncio.TimerHandle | None = None
        self._outputs: dict[tuple[str, str], _OutputStream] = {}

    def write(self, record: EventRecord) -> None:
        if record.run_id != self._run_id:
            return
        match record.payload:
            case LlmRequestSent(turn=turn):
                self._text = LiveText(self._redactor)
                self._request = replace(self._request, turn=turn, after=record.seq)
            case LlmResponseReceived() | LlmRequestFailed():
                self._stop_timer()
                self._show_text(self._text.close())
            case SkillStepExecuted(step_id=step_id):
                # The event contains the result, so output that is still buffered is obsolete.
                for stream in ("stdout", "stderr"):
                    if (output := self._outputs.pop((step_id, stream), None)) is not None:
                        output.close()
            case _:
                pass

    def observe(self, delta: Delta) -> None:
        self._stop_timer()
        if delta.kind == "restart":
            self._text = LiveText(self._redactor)
            self._send(replace(self._request, kind="restart"))
        elif delta.kind == "text":
            self._show_text(self._text.feed(delta.text))
            if self._text.is_holding:
                self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._pause)

    def take_output(self, step_id: str, stream: str, chunk: bytes) -> None:
        known = self._outputs.get((step_id, stream))
        if known is None:
            form = Partial(kind="output", run_id=self._run_id, turn=self._request.turn, step_id=step_id)
            known = _OutputStream(self._redactor, lambda text: self._send(replace(form, text=text)))
            self._outputs[step_id, stream] = known
        known.add(chunk)

    def close(self) -> None:
        self._stop_timer()
        for output in self._outputs.values():
            output.close()
        self._outputs.clear()

    def _pause(self) -> None:
        self._timer = None
        self._show_text(self._text.pause())

    def _show_text(self, text: str) -> None:
        if text:
            self._send(replace(self._request, text=text))

    def _send(self, partial: Partial) -> None:
        for observer in self._observers:
            if observer.wants_text or partial.kind == "output":
                observer.show(partial)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Line(Struct, frozen=True):
    """A line of the file."""

    number: int
    """Consecutive number. It starts at the current time, so that the next driver's numbers are higher."""
    partial: Partial


class PartialFile:
    """Writes partial updates next to the event log. Errors are ignored, because the updates are for display only."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._descriptor = -1
        self._is_broken = False
        self._size = 0
        self._number = time.time_ns() // 1000
        self._subject: object = None

    def show(self, partial: Partial) -> None:
        if self._is_broken or (not partial.text and partial.kind == "output"):
            return
        self._number += 1
        line = msgspec.json.encode(_Line(self._number, partial)) + b"\n"
        subject = partial.after or "output"
        try:
            if self._descriptor < 0:
                # No link is followed, because programs of the run may have created one. O_APPEND, so that writes after
                # a truncation start at the beginning of the file.
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            elif self._size > (MAX_FILE_BYTES if subject == self._subject else RESTART_BYTES):
                os.ftruncate(self._descriptor, 0)
                self._size = 0
            os.write(self._descriptor, line)
        except OSError:
            self.close()
            self._is_broken = True
        self._subject, self._size = subject, self._size + len(line)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path.unlink(missing_ok=True)


class PartialReader:
    """Reads the file that another process writes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._file: BinaryIO | None = None
        self._position = 0
        self._last = 0

    def read(self, *, is_driven: bool) -> list[Partial]:
        """Return the updates since the last call. Without a driver, no new file is opened."""
        found = self._read_open()
        # First read the rest of a deleted file, which is still open, then the file of the next driver.
        if is_driven and self._is_replaced():
            self.close()
            self._open()
            found += self._read_open()
        return [line.partial for line in found]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_replaced(self) -> bool:
        if self._file is None:
            return True
        opened = os.fstat(self._file.fileno())
        return opened.st_nlink == 0

    def _open(self) -> None:
        self._position = 0
        with suppress(OSError):
            self._file = open(self._path, "rb", opener=_open_plain)  # noqa: SIM115  kept open between two calls

    def _read_open(self) -> list[_Line]:
        if self._file is None:
            return []
        with suppress(OSError):
            found = self._read_from(self._position)
            if found and found[0].number > self._last + 1 and self._last:
                # The file was truncated and has already grown beyond the last position.
                found = self._read_from(0)
            new = [line for line in found if line.number > self._last]
            self._last = new[-1].number if new else self._last
            return new
        return []

    def _read_from(self, position: int) -> list[_Line]:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < position:
            position = 0
        self._file.seek(position)
        data = self._file.read(MAX_FILE_BYTES + RESTART_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._position = position + len(whole)
        return [line for text in whole.splitlines() if (line := _parse_line(text)) is not None]


def _open_plain(path: str, flags: int) -> int:
    # O_NONBLOCK, so that opening a pipe at this path doesn't block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _parse_line(text: bytes) -> _Line | None:
    """Parse a line; None for an incomplete one."""
    try:
        return msgspec.json.decode(text, type=_Line)
    except msgspec.DecodeError:
        return None
