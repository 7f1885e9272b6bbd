"""The screen of a chat, and its plain implementation that reads line by line. `terminal` has the other one."""

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
"""At the end of a line, it continues the message on the next line."""


class ChatSession(Protocol):
    """The methods of a session that its screen calls."""

    def interrupt(self) -> bool:
        """Stop the current turn. Returns False if there is none."""
        ...

    async def expand(self) -> None:
        """Show a truncated step in full."""
        ...

    def cycle_mode(self) -> None:
        """Change to the next permission mode."""
        ...

    async def suspend(self) -> None:
        """Stop the process until the shell continues it."""
        ...

    def list_queued(self) -> Sequence[str]:
        """List messages that are queued during a turn."""
        ...

    def describe_status(self) -> str: ...


class Screen(Protocol):
    """Reads from the user. Raises `EOFError` at the end of the input, `KeyboardInterrupt` for Ctrl-C."""

    @property
    def is_terminal(self) -> bool: ...

    @property
    def types_ahead(self) -> bool:
        """Return True if messages can be typed during a turn."""
        ...

    @property
    def painter(self) -> Painter:
        """The painter that shows turns."""
        ...

    def attach(self, session: ChatSession) -> None: ...

    def showing(self) -> AbstractContextManager[None]:
        """Keep the prompt intact while the block writes to stdout and stderr."""
        ...

    def restore_draft(self, text: str) -> None:
        """Put text into the prompt for editing."""
        ...

    async def read_message(self) -> str: ...

    async def read_line(self, prompt: str) -> str:
        """Read a line that is not a message."""
        ...

    async def read_key(self, prompt: str, keys: str) -> str:
        """Read one of the given keys."""
        ...

    async def edit(self, text: str, *, suffix: str) -> str | None:
        """Open the text in the user's editor. Returns None if it is unchanged. Raises `UsageError`."""
        ...


class PlainScreen:
    """Reads lines from stdin. Shows prompts at a dumb terminal."""

    types_ahead = False

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal
        self.painter: Painter = build_painter(sys.stderr)
        self._pending: asyncio.Future[str] | None = None

    def attach(self, session: ChatSession) -> None:
        """Do nothing: this screen shows no session state."""

    def restore_draft(self, text: str) -> None:
        """Do nothing: there is no prompt."""

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
        # If an earlier caller was canceled, its thread is still reading: the next line belongs to this caller.
        if self._pending is None:
            self._pending = _start_reading(asyncio.get_running_loop())
        # Canceling this caller must not cancel the future that the thread still fills.
        line = await asyncio.shield(self._pending)
        self._pending = None
        if not line:
            raise EOFError
        # Files from Windows end their lines with CR LF.
        return line.removesuffix("\n").removesuffix("\r")


def _start_reading(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[str]":
    """Read in a daemon thread, which does not keep the program from exiting."""
    line: asyncio.Future[str] = loop.create_future()

    def deliver(text: str) -> None:
        if not line.done():
            line.set_result(text)

    def read() -> None:
        try:
            # In a thread, because an event loop can't wait for a regular file.
            text = sys.stdin.readline()
        except (OSError, ValueError):
            text = ""
        loop.call_soon_threadsafe(deliver, text)

    threading.Thread(target=read, name="chat input", daemon=True).start()
    return line
