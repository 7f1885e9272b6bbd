"""The keys of the prompt: send, new line, interrupt, expand, editor, completion."""

from typing import Protocol

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from metier.cli.chat.screen import CONTINUED


class Answering(Protocol):
    """What the keys are bound to; `terminal.Terminal` is one."""

    @property
    def is_asked(self) -> bool: ...

    def answer(self, text: str | None) -> None: ...

    def interrupt(self) -> bool: ...

    def expand(self) -> None: ...

    async def edit_draft(self) -> None: ...


def build_keys(terminal: Answering) -> KeyBindings:
    """Enter sends; Esc-Enter, and Enter behind a backslash, begin a new line."""
    keys = KeyBindings()
    _bind_writing(keys, terminal)
    _bind_commands(keys, terminal)
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
        # A message goes on behind the name of a file; a command is whole.
        if chosen is None or not chosen.text.startswith("@"):
            _enter(event, terminal)

    @keys.add("tab")
    def _complete(event: KeyPressEvent) -> None:
        _complete_word(event.current_buffer)

    @keys.add("escape", "enter", filter=Condition(lambda: not terminal.is_asked))
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    del _send, _take, _complete, _break


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
        del event
        terminal.expand()

    @keys.add("c-g", filter=~is_asked)
    def _edit(event: KeyPressEvent) -> None:
        event.app.create_background_task(terminal.edit_draft())

    del _interrupt, _leave_open, _expand, _edit


def _complete_word(buffer: Buffer) -> None:
    """At once: a menu that is still being made for what is typed must not swallow the key."""
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
