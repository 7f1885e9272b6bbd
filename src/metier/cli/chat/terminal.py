"""The terminal of a chat: a prompt that stays visible during turns, live output above it, a status line below it.

Only this module and `prompt_keys` import prompt_toolkit.
"""

import asyncio
import io
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, override

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.search import stop_search
from prompt_toolkit.styles import Style
from rich.console import RenderableType
from rich.text import Text

from metier.cli.chat.prompt_keys import ChatCompleter, build_keys, completes_by_itself
from metier.cli.chat.screen import ChatSession
from metier.cli.shared.editor import edit_in_thread
from metier.cli.shared.output import printable
from metier.errors import UsageError
from metier.runtime.chat.chats import Chat
from metier.telemetry.excerpt import one_line
from metier.views.markdown import render_block
from metier.views.painter import build_console, lay_out, render, spell

PROMPT = "you> "
MAX_QUEUED = 4
MAX_PASTED_LINES = 20
ESCAPE_SECONDS = 0.3
_STYLE = Style.from_dict(
    {
        "bottom-toolbar": "noreverse",
        "bottom-toolbar.text": "dim",
        "you": "bold",
        "completion-menu": "bg:#262626 #d0d0d0",
        "completion-menu.completion.current": "noreverse bg:#005f87 #ffffff bold",
        "completion-menu.meta.completion": "bg:#262626 #8a8a8a",
        "completion-menu.meta.completion.current": "noreverse bg:#005f87 #d0d0d0",
        "scrollbar.background": "bg:#262626",
        "scrollbar.button": "bg:#585858",
    }
)
_LINK = re.compile(r"\x1b\]8;[^\x1b\x07]*(?:\x1b\\|\x07)")
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized output: terminals that support it show everything in between at once; others ignore it."""


@dataclass(slots=True)
class _Question:
    """A question of a turn. The user may be typing a message when it is asked."""

    prompt: str
    answer: "asyncio.Future[str]"
    keys: str = ""
    """Keys that answer without Enter; if empty, the answer is a line."""


class Terminal:
    """A `Screen` for a real terminal, and the `Painter` of its turns."""

    is_terminal = True
    types_ahead = True
    is_live = True

    def __init__(self, chat: Chat, *, history: Path) -> None:
        _make_private(history)
        self._stream: TextIO = sys.stdout if sys.stdout.isatty() else sys.stderr
        self._console = build_console(self._stream, is_terminal=True)
        self._session: ChatSession | None = None
        self._question: _Question | None = None
        self._region: list[Text] = []
        self._pending: list[str] = []
        """Text that the next frame writes, all at once."""
        self._ends_blank = False
        """Return True if the last line above the prompt is blank, so that the next block needs no blank line."""
        self._is_away = False
        """True while an editor uses the screen."""
        self._pasted: dict[str, str] = {}
        """Long pasted texts by their placeholder in the prompt."""
        completer = ChatCompleter(chat, is_answering=lambda: self._question is not None)
        self._prompt: PromptSession[str] = PromptSession(
            history=_UnfoldedHistory(str(history), self.unfold),
            completer=completer,
            complete_while_typing=Condition(self._completes),
            key_bindings=build_keys(self),
            multiline=True,
            prompt_continuation="...> ",
            output=_open_output(self._stream),
            bottom_toolbar=self._build_status,
            style=_STYLE,
            erase_when_done=True,
            tempfile_suffix=".md",
        )
        # Esc alone interrupts. Wait this long for the rest of an escape sequence, and for Enter after a typed Esc.
        self._prompt.app.ttimeoutlen, self._prompt.app.timeoutlen = 0.05, ESCAPE_SECONDS

    # The screen.

    @property
    def painter(self) -> "Terminal":
        return self

    def attach(self, session: ChatSession) -> None:
        self._session = session

    async def read_message(self) -> str:
        # `passing_signals` handles SIGINT, also while the prompt is open.
        return self.unfold(
            await self._prompt.prompt_async(self._build_prompt, handle_sigint=False, set_exception_handler=False)
        )

    async def read_line(self, prompt: str) -> str:
        """Ask for a line. An unfinished message is restored afterwards."""
        return await self._ask(prompt, keys="")

    async def read_key(self, prompt: str, keys: str) -> str:
        """Ask for one of the keys, or for a line if the user is typing a message: the next letter may belong to it."""
        if not self._prompt.default_buffer.text:
            return await self._ask(prompt, keys=keys)
        while (word := (await self._ask(prompt, keys="")).strip()) not in tuple(keys):
            self.print(Text(f"Answer with one of {' '.join(keys)} and Enter", "dim"))
        return word

    async def _ask(self, prompt: str, *, keys: str) -> str:
        buffer = self._prompt.default_buffer
        with set_app(self._prompt.app):
            if self._prompt.app.layout.is_searching:
                stop_search()
        self._flush()  # so that the approval card is above its question
        draft = buffer.document
        question = _Question(printable(prompt), asyncio.get_running_loop().create_future(), keys)
        self._question = question
        buffer.reset(Document())
        self._refresh()
        try:
            answer = await question.answer
            shown = _name_choice(question.prompt, answer) if keys else f"{question.prompt}{printable(answer)}"
            self.print(Text(shown, "dim"))
            return answer
        finally:
            self._question = None
            buffer.reset(draft)
            self._refresh()

    async def edit(self, text: str, *, suffix: str) -> str | None:
        self._is_away = True
        try:
            async with in_terminal():
                return await edit_in_thread(text, suffix=suffix)
        finally:
            self._is_away = False
            self._flush()

    async def suspend(self) -> None:
        """Stop the process with the prompt erased; draw it again when the shell continues the process."""
        if self._session is None:
            return
        self._is_away = True
        try:
            async with in_terminal():
                await self._session.suspend()
        finally:
            self._is_away = False
            self._flush()

    @contextmanager
    def showing(self) -> Generator[None]:
        before = (sys.stdout, sys.stderr)
        above = _Above(self)
        sys.stdout, sys.stderr = (above if stream.isatty() else stream for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            self._region = []
            self._flush()

    # The actions of the keys; see `prompt_keys`.

    @property
    def is_asked(self) -> bool:
        return self._question is not None

    @property
    def is_choosing(self) -> bool:
        return self._question is not None and bool(self._question.keys)

    def choose(self, key: str) -> None:
        """Answer the open question, if the key is one of its answers."""
        keys = self._question.keys if self._question is not None else ""
        known = next((each for each in (key, key.lower()) if len(each) == 1 and each in keys), None)
        if known is not None:
            self.answer(known)

    def fold(self, pasted: str) -> str:
        """Return the pasted text, or a placeholder with its number of lines if it is long."""
        lines = pasted.strip("\n").count("\n") + 1
        if lines <= MAX_PASTED_LINES:
            return pasted
        number = sum(words.startswith(f"[{lines} lines pasted") for words in self._pasted) + 1
        words = f"[{lines} lines pasted]" if number == 1 else f"[{lines} lines pasted, {number}]"
        self._pasted[words] = pasted
        return words

    def unfold(self, text: str) -> str:
        """Return a message with its pasted texts in full."""
        for words, pasted in self._pasted.items():
            text = text.replace(words, pasted)
        return text

    def answer(self, text: str | None) -> None:
        """Answer the open question; None leaves it undecided."""
        question = self._question
        if question is not None and not question.answer.done():
            question.answer.set_exception(EOFError()) if text is None else question.answer.set_result(text)

    def interrupt(self) -> bool:
        return self._session is not None and self._session.interrupt()

    def cycle_mode(self) -> None:
        if self._session is not None:
            self._session.cycle_mode()
            self._refresh()

    async def expand(self) -> None:
        if self._session is not None:
            await self._session.expand()

    async def edit_draft(self) -> None:
        """Open the draft in the user's editor."""
        buffer = self._prompt.default_buffer
        try:
            edited = await self.edit(self.unfold(buffer.text), suffix=".md")
        except UsageError as error:
            self.print(Text(printable(f"error: {error.message}"), "red"))
            return
        if edited is not None:
            text = edited.rstrip("\n")
            buffer.reset(Document(text, len(text)))
            self._refresh()

    def restore_draft(self, text: str) -> None:
        """Insert text into the prompt, before the draft."""
        buffer = self._prompt.default_buffer
        typed = buffer.text
        whole = f"{text}\n{typed}" if typed else text
        buffer.reset(Document(whole, len(whole)))
        self._refresh()

    # The painter.

    @property
    def width(self) -> int:
        return max(20, self._prompt.output.get_size().columns)

    @property
    def height(self) -> int:
        """The rows that the prompt, the status line and queued messages leave free."""
        return max(8, self._prompt.output.get_size().rows - 5)

    def print(self, *renderables: RenderableType) -> None:
        self._region = []
        text = render(self._console, renderables, width=self.width)
        self.write_above(text.removeprefix("\n") if self._ends_blank else text)

    def show(self, lines: Sequence[Text]) -> None:
        # Cut first: measuring the width of a line takes time proportional to its length.
        self._region = [line[: 4 * self.width] for line in lines]
        for line in self._region:
            line.truncate(self.width - 1, overflow="ellipsis")
        self._refresh()

    def markdown(self, block: str) -> RenderableType:
        return render_block(block)

    def lay_out(self, renderable: RenderableType, *, width: int) -> list[Text]:
        return lay_out(self._console, renderable, width=width)

    def close(self) -> None:
        self.show(())

    # Painting.

    def write_above(self, text: str) -> None:
        """Write permanent lines above the prompt."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(text)
        self._ends_blank = text == "\n" or text.endswith("\n\n")

    def _flush(self) -> None:
        if self._is_away or not self._pending:
            return
        text, self._pending = spell("".join(self._pending), self._stream), []
        output, app = self._prompt.output, self._prompt.app
        if not app.is_running:
            output.write_raw(text)
            output.flush()
            return
        output.write_raw(_BEGIN)
        app.renderer.erase()
        output.write_raw(text)
        app.render_counter += 1  # the prompt caches its content by this number
        app.renderer.render(app, app.layout)
        output.write_raw(_END)
        output.flush()

    def _refresh(self) -> None:
        self._prompt.app.invalidate()

    def _build_prompt(self) -> AnyFormattedText:
        if self._prompt.app.is_done:
            return [("class:you", PROMPT)]
        if self._question is not None:
            *above, last = self._question.prompt.split("\n")
            return [*(("", f"{line}\n") for line in above), ("class:you", last)]
        queued = self._session.list_queued() if self._session is not None else ()
        lines = [*self._region, *(_render_queued(message, self.width) for message in queued[-MAX_QUEUED:])]
        if not lines:
            return [("", "\n"), ("class:you", PROMPT)]
        painted = _LINK.sub("", spell(render(self._console, lines, width=self.width), self._stream))
        return ANSI(f"{painted}\n\x1b[0;1m{PROMPT}\x1b[0m")

    def _build_status(self) -> AnyFormattedText:
        status = self._session.describe_status() if self._session is not None else ""
        return printable(one_line(status, self.width - 1)) if status else None

    def _completes(self) -> bool:
        return self._question is None and completes_by_itself(self._prompt.default_buffer.document)


class _Above(io.TextIOBase):
    """A stream that writes whole lines above the prompt."""

    encoding = "utf-8"

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._line = ""

    @override
    def isatty(self) -> bool:
        return True

    @override
    def fileno(self) -> int:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2

    @override
    def write(self, text: str) -> int:
        lines, end, rest = (self._line + text).rpartition("\n")
        self._line = rest
        if end:
            self._terminal.write_above(lines + end)
        return len(text)


class _UnfoldedHistory(FileHistory):
    """The history of messages, with pasted texts in full."""

    def __init__(self, filename: str, unfold: Callable[[str], str]) -> None:
        super().__init__(filename)
        self._unfold = unfold

    @override
    def store_string(self, string: str) -> None:
        super().store_string(self._unfold(string))


class _BottomOutput(Vt100_Output):
    """An output that never asks for the cursor position: a late reply would be read as typed keys."""

    @override
    def get_rows_below_cursor_position(self) -> int:
        return 1


def _open_output(stream: TextIO) -> Output:
    if sys.platform == "win32":
        return create_output(always_prefer_tty=True)
    opened = _BottomOutput.from_pty(stream)
    opened.enable_cpr = False
    return opened


def _name_choice(prompt: str, key: str) -> str:
    """Return the question with the chosen word, such as `Write a.txt (1 of 3): yes` for `y`."""
    *above, choices = prompt.split("\n")
    word = re.search(rf"\[{re.escape(key)}\](\w*)", choices)
    chosen = f"{key}{word[1]}" if word else key
    return f"{above[-1]}: {chosen}" if above else f"→ {chosen}"


def _render_queued(message: str, width: int) -> Text:
    line = Text(f"queued: {one_line(printable(message), width)}", "dim italic")
    line.truncate(width - 1, overflow="ellipsis")
    return line


def _make_private(history: Path) -> None:
    """Make the history readable for this user only."""
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch(mode=0o600, exist_ok=True)
