"""Where a chat reads what a person types, and the plain way to do it: line by line. `terminal` has the other."""

import asyncio
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from metier.cli.shared.editor import edit_in_thread
from metier.cli.shared.output import printable, warn_line
from metier.views.painter import Painter, build_painter

CONTINUED = "\\"
"""At the end of a line: the message goes on."""


class Sitting(Protocol):
    """What a screen asks of the conversation that is held at it."""

    def interrupt(self) -> bool:
        """Stop the turn under way; False where there is none."""
        ...

    async def expand(self) -> None:
        """Show a step whole that was shown in part."""
        ...

    def cycle_mode(self) -> None:
        """Change to the next permission mode."""
        ...

    def list_queued(self) -> Sequence[str]:
        """Messages that wait for the turn under way to end."""
        ...

    def describe_status(self) -> str: ...


class Screen(Protocol):
    """Raises `EOFError` when there is no more, `KeyboardInterrupt` for Ctrl-C."""

    @property
    def is_terminal(self) -> bool: ...

    @property
    def types_ahead(self) -> bool:
        """Messages can be typed while a turn runs."""
        ...

    @property
    def painter(self) -> Painter:
        """Where turns are shown."""
        ...

    def attach(self, sitting: Sitting) -> None: ...

    def showing(self) -> AbstractContextManager[None]:
        """While this block lasts, what is written to stdout and stderr leaves the prompt whole."""
        ...

    def put_back(self, text: str) -> None:
        """Into the prompt, to be sent or changed."""
        ...

    async def read_message(self) -> str: ...

    async def read_line(self, prompt: str) -> str:
        """One line, with a prompt of its own; it is no message."""
        ...

    async def read_key(self, prompt: str, keys: str) -> str:
        """One of the given keys, exactly."""
        ...

    async def edit(self, text: str, *, suffix: str) -> str | None:
        """The text as the person's editor left it; None where it left it alone. Raises `UsageError`."""
        ...


class PlainScreen:
    """Lines of stdin. At a dumb terminal it shows what it waits for."""

    types_ahead = False

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal
        self.painter: Painter = build_painter(sys.stderr)
        self._pending: asyncio.Future[str] | None = None

    def attach(self, sitting: Sitting) -> None:
        """Nothing of it is shown here."""

    def put_back(self, text: str) -> None:
        """There is no prompt to put it into."""

    def showing(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def edit(self, text: str, *, suffix: str) -> str | None:
        return await edit_in_thread(text, suffix=suffix)

    async def read_message(self) -> str:
        lines: list[str] = []
        while True:
            line = await self._read("you> " if not lines else "...> ")
            if not line.endswith(CONTINUED):
                return "\n".join([*lines, line])
            lines.append(line.removesuffix(CONTINUED))

    async def read_line(self, prompt: str) -> str:
        return await self._read(prompt)

    async def read_key(self, prompt: str, keys: str) -> str:
        while (word := (await self._read(prompt)).strip()) not in tuple(keys):
            warn_line(f"Answer with one of {' '.join(keys)}")
        return word

    async def _read(self, prompt: str) -> str:
        if self.is_terminal:
            sys.stderr.write(printable(prompt))
            sys.stderr.flush()
        # A caller that gave up waiting left the thread reading; the line that comes is for the next caller.
        if self._pending is None:
            self._pending = _start_reading(asyncio.get_running_loop())
        line = await asyncio.shield(self._pending)
        self._pending = None
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")


def _start_reading(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[str]":
    """A thread of its own, which does not keep the program from ending."""
    line: asyncio.Future[str] = loop.create_future()

    def deliver(text: str) -> None:
        if not line.done():
            line.set_result(text)

    def read() -> None:
        try:
            text = sys.stdin.readline()
        except (OSError, ValueError):
            text = ""
        loop.call_soon_threadsafe(deliver, text)

    threading.Thread(target=read, name="chat input", daemon=True).start()
    return line
