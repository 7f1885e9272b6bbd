"""The prompt's keys (send, new line, interrupt, expand, editor) and its completion of commands, files and skills."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, override

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions, is_searching
from prompt_toolkit.key_binding import ConditionalKeyBindings, KeyBindings, KeyBindingsBase, KeyPressEvent
from prompt_toolkit.key_binding.bindings.search import abort_search
from prompt_toolkit.key_binding.key_bindings import merge_key_bindings
from prompt_toolkit.keys import Keys

from metier.cli.chat.screen import CONTINUED
from metier.cli.chat.slash_commands import list_commands
from metier.errors import MetierError
from metier.runtime.chat.chats import Chat


class Answering(Protocol):
    """The actions that keys are bound to; `terminal.Terminal` implements it."""

    @property
    def is_asked(self) -> bool: ...

    @property
    def is_choosing(self) -> bool:
        """Return True if a single key answers the open question."""
        ...

    def choose(self, key: str) -> None: ...

    def fold(self, pasted: str) -> str: ...

    def answer(self, text: str | None) -> None: ...

    def interrupt(self) -> bool: ...

    def cycle_mode(self) -> None: ...

    async def expand(self) -> None: ...

    async def edit_draft(self) -> None: ...

    async def suspend(self) -> None: ...


def build_keys(terminal: Answering) -> KeyBindingsBase:
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


def _bind_writing(keys: KeyBindings, terminal: Answering) -> None:
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

    @keys.add("escape", "enter", filter=Condition(lambda: not terminal.is_asked))
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        pasted = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(pasted if terminal.is_asked else terminal.fold(pasted))

    # The decorators registered the functions. `del` tells the type checker that their names are unused on purpose.
    del _send, _take, _complete, _break, _paste


def _bind_commands(keys: KeyBindings, terminal: Answering) -> None:
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

    @keys.add("c-z")
    def _suspend(event: KeyPressEvent) -> None:
        event.app.create_background_task(terminal.suspend())

    del _interrupt, _leave_open, _expand, _edit, _suspend


def _bind_escape(keys: KeyBindings, terminal: Answering) -> None:
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


def _bind_modes(keys: KeyBindings, terminal: Answering) -> None:
    @keys.add("s-tab", filter=~has_completions & Condition(lambda: not terminal.is_asked))
    def _cycle(event: KeyPressEvent) -> None:
        del event
        terminal.cycle_mode()

    del _cycle


def _bind_answers(keys: KeyBindings, terminal: Answering) -> None:
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


def _enter(event: KeyPressEvent, terminal: Answering) -> None:
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
