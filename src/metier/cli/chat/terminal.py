"""The terminal of a chat: a prompt that stays visible during turns, live output above it, a status line below it.

Only this module imports prompt_toolkit.
"""

import asyncio
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, override

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import ConditionalKeyBindings, KeyBindings, KeyBindingsBase, KeyPressEvent
from prompt_toolkit.key_binding.bindings.search import abort_search
from prompt_toolkit.key_binding.key_bindings import merge_key_bindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.search import stop_search
from prompt_toolkit.styles import Style
from rich.console import RenderableType
from rich.text import Text

from metier.cli.chat.screen import CONTINUED, ChatSession
from metier.cli.chat.slash_commands import list_commands
from metier.cli.shared.editor import edit_in_thread
from metier.cli.shared.output import printable
from metier.errors import MetierError, UsageError
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
_COLUMN = re.compile(r".*\S\s{2,}(?=\S)|\w+: +(?=\S)")
"""The text before the last column of a table, or before the value of a labeled line."""
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
        """True if the last line above the prompt is blank, so that the next block needs no blank line."""
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
            # The session prints the message when its turn starts, which may be much later.
            erase_when_done=True,
            tempfile_suffix=".md",
        )
        # Esc alone interrupts. Wait this long for the rest of an escape sequence, and for Enter after a typed Esc.
        self._prompt.app.ttimeoutlen, self._prompt.app.timeoutlen = 0.05, ESCAPE_SECONDS

    # The methods of `screen.Screen`.

    @property
    def painter(self) -> "Terminal":
        return self

    def attach(self, session: ChatSession) -> None:
        self._session = session

    async def read_message(self) -> str:
        # prompt_toolkit's own exception handler would stop and wait for Enter.
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
        # An open search would take the keys of the answer.
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
        # A redirected stream stays as it is: its file must get what is printed.
        sys.stdout, sys.stderr = (above if stream.isatty() else stream for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            self._region = []
            self._flush()

    # The actions that `build_keys` binds to keys.

    @property
    def is_asked(self) -> bool:
        return self._question is not None

    @property
    def is_choosing(self) -> bool:
        """Return True if a single key answers the open question."""
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

    # The methods of `views.painter.Painter`.

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
            # One less, because some terminals wrap a line as soon as its last column is written.
            line.truncate(self.width - 1, overflow="ellipsis")
        self._refresh()

    def markdown(self, block: str) -> RenderableType:
        return render_block(block)

    def lay_out(self, renderable: RenderableType, *, width: int) -> list[Text]:
        return lay_out(self._console, renderable, width=width)

    def close(self) -> None:
        self.show(())

    def write_above(self, text: str) -> None:
        """Write permanent lines above the prompt."""
        if not self._pending:
            # Once per turn of the event loop, because each flush erases and draws the prompt again.
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(text)
        self._ends_blank = text == "\n" or text.endswith("\n\n")

    def write_lines(self, lines: Sequence[str]) -> None:
        """Write lines of a command above the prompt, wrapped between words."""
        self.write_above("".join(f"{self._color(wrap_line(line, self.width))}\n" for line in lines))

    def _color(self, line: str) -> str:
        label, colon, rest = line.partition(":")
        if label != "error" or not colon:
            return line
        return render(self._console, [Text.assemble((f"{label}:", "bold red"), rest)], soft_wrap=True).rstrip("\n")

    def _flush(self) -> None:
        if self._is_away or not self._pending:
            return
        text, self._pending = spell("".join(self._pending), self._stream), []
        output, app = self._prompt.output, self._prompt.app
        if not app.is_running:
            # Not `write`, which replaces the escape character of colors by a question mark.
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
            return [
                ("", "\n"),
                *(("", f"{line}\n") for line in above),
                ("class:you", _wrap_words(last, self.width - 1)),
            ]
        queued = self._session.list_queued() if self._session is not None else ()
        lines = [*self._region, *(_render_queued(message, self.width) for message in queued[-MAX_QUEUED:])]
        if not lines:
            return [("", "\n"), ("class:you", PROMPT)]
        # prompt_toolkit's parser of escape codes does not know hyperlinks and would show them as text.
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
            self._terminal.write_lines(lines.split("\n"))
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


def wrap_line(line: str, width: int) -> str:
    """Wrap a line between words. Further lines are indented to the last column that begins in its first half."""
    if len(line) <= width or "\x1b" in line:
        return line
    column = _COLUMN.match(line[: width // 2])
    margin = " " * (column.end() if column is not None else len(line) - len(line.lstrip()))
    return "\n".join(textwrap.wrap(line, width, subsequent_indent=margin, break_on_hyphens=False))


def _wrap_words(prompt: str, width: int) -> str:
    """Break a long question between words. The answer is typed after its last line."""
    text = prompt.rstrip()
    return "\n".join(textwrap.wrap(text, width)) + prompt[len(text) :]


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
    # Messages may contain secrets, and prompt_toolkit would create the file with the default permissions.
    history.touch(mode=0o600, exist_ok=True)


def build_keys(terminal: Terminal) -> KeyBindingsBase:
    """Build the key bindings. Enter sends; Esc-Enter, or Enter after a backslash, starts a new line."""
    keys = KeyBindings()
    _bind_writing(keys, terminal)
    _bind_commands(keys, terminal)
    _bind_escape(keys, terminal)
    _bind_modes(keys, terminal)
    _bind_answers(keys, terminal)
    # These bindings take precedence over those of prompt_toolkit. During a search its own must apply.
    return merge_key_bindings([ConditionalKeyBindings(keys, ~is_searching), _build_search_keys()])


def _build_search_keys() -> KeyBindings:
    """Bind Ctrl-D, which prompt_toolkit does not bind in a search, to cancel it like Ctrl-C and Ctrl-G."""
    keys = KeyBindings()
    keys.add("c-d", filter=is_searching)(abort_search)
    return keys


def _bind_writing(keys: KeyBindings, terminal: Terminal) -> None:
    @keys.add("enter", filter=~has_completions)
    def _send(event: KeyPressEvent) -> None:
        _enter(event, terminal)

    @keys.add("enter", filter=has_completions)
    def _take(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        chosen = buffer.complete_state.current_completion if buffer.complete_state is not None else None
        buffer.complete_state = None
        # After a folder the user continues typing the path.
        if chosen is None or not (chosen.text.startswith("@") and chosen.text.endswith("/")):
            _enter(event, terminal)

    @keys.add("tab")
    def _complete(event: KeyPressEvent) -> None:
        _complete_word(event.current_buffer)

    # Terminals send Alt-Enter as Esc followed by Enter.
    @keys.add("escape", "enter", filter=Condition(lambda: not terminal.is_asked))
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        # Terminals paste line ends as carriage returns, like the Enter key.
        pasted = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(pasted if terminal.is_asked else terminal.fold(pasted))

    # The decorators registered the functions. `del` tells the type checker that their names are unused on purpose.
    del _send, _take, _complete, _break, _paste


def _bind_commands(keys: KeyBindings, terminal: Terminal) -> None:
    is_asked = Condition(lambda: terminal.is_asked)

    @keys.add("c-c")
    def _interrupt(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if terminal.is_asked:
            terminal.answer(None)
        elif terminal.interrupt():
            return
        elif buffer.text:
            buffer.reset(Document())
        else:
            event.app.exit(exception=KeyboardInterrupt())

    @keys.add("c-d", filter=is_asked)
    def _leave_open(event: KeyPressEvent) -> None:
        del event
        terminal.answer(None)

    @keys.add("c-o")
    def _expand(event: KeyPressEvent) -> None:
        event.app.create_background_task(terminal.expand())

    @keys.add("c-g", filter=~is_asked)
    def _edit(event: KeyPressEvent) -> None:
        event.app.create_background_task(terminal.edit_draft())

    # The prompt reads keys in raw mode, in which the terminal driver sends no signals.
    @keys.add("c-z")
    def _suspend(event: KeyPressEvent) -> None:
        event.app.create_background_task(terminal.suspend())

    del _interrupt, _leave_open, _expand, _edit, _suspend


def _bind_escape(keys: KeyBindings, terminal: Terminal) -> None:
    @keys.add("escape", filter=~has_completions)
    def _stop(event: KeyPressEvent) -> None:
        del event
        if terminal.is_asked:
            terminal.answer(None)
        else:
            terminal.interrupt()

    @keys.add("escape", filter=has_completions)
    def _close_menu(event: KeyPressEvent) -> None:
        event.current_buffer.cancel_completion()

    del _stop, _close_menu


def _bind_modes(keys: KeyBindings, terminal: Terminal) -> None:
    @keys.add("s-tab", filter=~has_completions & Condition(lambda: not terminal.is_asked))
    def _cycle(event: KeyPressEvent) -> None:
        del event
        terminal.cycle_mode()

    del _cycle


def _bind_answers(keys: KeyBindings, terminal: Terminal) -> None:
    """Bind the keys while a question waits for a single key: other keys insert nothing."""
    is_choosing = Condition(lambda: terminal.is_choosing)

    @keys.add(Keys.Any, filter=is_choosing)
    def _choose(event: KeyPressEvent) -> None:
        terminal.choose(event.data)

    @keys.add("enter", filter=is_choosing)
    @keys.add("tab", filter=is_choosing)
    @keys.add(Keys.BracketedPaste, filter=is_choosing)
    def _ignore(event: KeyPressEvent) -> None:
        del event

    del _choose, _ignore


def _complete_word(buffer: Buffer) -> None:
    """Complete synchronously, so that a completion menu still being computed does not swallow the key."""
    if buffer.complete_state is not None:
        buffer.complete_next()
        return
    found = list(buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True)))
    if len(found) == 1:
        buffer.apply_completion(found[0])
    elif found:
        if common := get_common_complete_suffix(buffer.document, found):
            buffer.insert_text(common)
        buffer.start_completion()


def _enter(event: KeyPressEvent, terminal: Terminal) -> None:
    buffer = event.current_buffer
    if terminal.is_asked:
        text = buffer.text
        buffer.reset(Document())
        terminal.answer(text)
    elif buffer.document.text_before_cursor.endswith(CONTINUED):
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


MAX_FILES = 200
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", "runs"})
_DESCRIPTION = 60


class ChatCompleter(Completer):
    """Completes commands after `/`, their arguments, paths after `@`, and skill names anywhere."""

    def __init__(self, chat: Chat, *, is_answering: Callable[[], bool]) -> None:
        self._chat = chat
        self._is_answering = is_answering

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        if self._is_answering():
            return
        before = document.text_before_cursor
        word = get_word(before)
        for text, note in self._find(before, word):
            if text.casefold().startswith(word.casefold()):
                yield Completion(text, start_position=-len(word), display_meta=note)

    def _find(self, before: str, word: str) -> Iterable[tuple[str, str]]:
        try:
            if word.startswith("@"):
                return list_paths(self._chat.runtime.host.workspace, word)
            if before.startswith("/") and " " not in before:
                return [(f"/{name}", summary) for name, summary in list_commands(self._chat)]
            if before.startswith("/model "):
                return [(name, "") for name in self._chat.list_models()]
            if before.startswith("/agent "):
                return [(name, "") for name in self._chat.list_agents()]
            wants_skills = before.startswith("/skills ") or len(word) > 1
            packages = self._chat.resolve().packages if wants_skills else ()
        except MetierError:
            # Errors in the agent's definition are reported when the message is sent.
            return []
        return [(package.definition.name, package.definition.description[:_DESCRIPTION]) for package in packages]


def get_word(before: str) -> str:
    """Return the word being typed: the text after the last blank."""
    return before.rsplit(maxsplit=1)[-1] if before.split() and not before[-1].isspace() else ""


def completes_by_itself(document: Document) -> bool:
    """Return True if completions are shown without Tab: for commands and paths."""
    before = document.text_before_cursor
    return get_word(before).startswith("@") or (before.startswith("/") and not before[1:2].isspace())


def list_paths(workspace: Path, word: str) -> Iterator[tuple[str, str]]:
    """Yield the entries of the folder being typed, each with the `@` before it; folders end in a slash."""
    folder, _, prefix = word[1:].rpartition("/")
    root = workspace / folder if folder else workspace
    # Only files of the workspace can be attached.
    if ".." in Path(folder).parts or Path(folder).is_absolute():
        return
    try:
        with os.scandir(root) as found:
            entries = sorted(found, key=lambda entry: entry.name.casefold())
    except OSError:
        return
    shown = 0
    for entry in entries:
        hidden = entry.name.startswith(".") and not prefix.startswith(".")
        if hidden or entry.name in _SKIPPED or not entry.name.casefold().startswith(prefix.casefold()):
            continue
        path = f"{folder}/{entry.name}" if folder else entry.name
        yield (f"@{path}/" if entry.is_dir(follow_symlinks=False) else f"@{path}"), ""
        shown += 1
        if shown == MAX_FILES:
            return
