"""The log of one server in the folder of a run: what it writes on its error stream, cleaned and bounded."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from metier.tools.process.output import Capture

MAX_BYTES = 1_048_576
_TAIL_BYTES = 400
_MAX_LINE = 16_384


class ServerLog:
    """Takes bytes as they come, writes whole lines. Without a path only the last words are kept."""

    def __init__(self, path: Path | None, *, clean: Callable[[str], str]) -> None:
        self._path = path
        self._clean = clean
        self._left = MAX_BYTES
        self._rest = b""
        self._last = Capture(2 * _TAIL_BYTES)

    def add(self, chunk: bytes) -> None:
        self._last.add(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._write(line)

    def tail(self) -> str:
        """The last words, as they came."""
        return self._last.output().last(_TAIL_BYTES).strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def _write(self, line: bytes) -> None:
        if self._path is None or self._left <= 0:
            return
        text = self._clean(line.decode("utf-8", "replace")).encode("utf-8", "replace") + b"\n"
        self._left -= len(text)
        if self._left <= 0:
            text = f"… the rest is left out: {MAX_BYTES} bytes are the most\n".encode()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as stream:
            stream.write(text)
