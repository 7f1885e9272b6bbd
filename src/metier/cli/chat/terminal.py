"""The terminal of a chat: history in a file, completion, many lines. The only file that knows prompt_toolkit."""

from collections.abc import Iterable
from pathlib import Path
from typing import override

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_completions
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from metier.cli.chat.screen import CONTINUED
from metier.cli.chat.slash_commands import COMMANDS
from metier.cli.shared.output import printable
from metier.errors import MetierError
from metier.runtime.chat.chats import Chat


class Terminal:
    """A `Screen` for a person."""

    is_terminal = True

    def __init__(self, chat: Chat, *, history: Path) -> None:
        _make_private(history)
        # Where stdout is a file, the prompt is still for the person.
        output = create_output(always_prefer_tty=True)
        self._messages: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)),
            completer=ChatCompleter(chat),
            complete_while_typing=False,
            key_bindings=build_keys(),
            multiline=True,
            prompt_continuation="...> ",
            output=output,
        )
        self._lines: PromptSession[str] = PromptSession(output=output)

    async def read_message(self) -> str:
        return await self._messages.prompt_async("you> ")

    async def read_line(self, prompt: str) -> str:
        return await self._lines.prompt_async(printable(prompt))


class ChatCompleter(Completer):
    """Commands after `/`, what they take after them, and the names of skills anywhere."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        word = before.split()[-1] if before.split() and not before[-1].isspace() else ""
        for text, note in self._find(before, word):
            if text.casefold().startswith(word.casefold()):
                yield Completion(text, start_position=-len(word), display_meta=note)

    def _find(self, before: str, word: str) -> list[tuple[str, str]]:
        try:
            if before.startswith("/") and " " not in before:
                return [(f"/{name}", command.summary) for name, command in COMMANDS.items()]
            if before.startswith("/model "):
                return [(name, "") for name in self._chat.list_models()]
            wants_skills = before.startswith("/skills ") or len(word) > 1
            packages = self._chat.resolve().packages if wants_skills else ()
        except MetierError:
            # Whatever is wrong with the agent is said when the turn is sent.
            return []
        return [(package.definition.name, package.definition.description[:60]) for package in packages]


def build_keys() -> KeyBindings:
    """Enter sends; Esc-Enter, and Enter behind a backslash, begin a new line."""
    keys = KeyBindings()

    @keys.add("enter", filter=~has_completions)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith(CONTINUED):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        buffer.validate_and_handle()

    @keys.add("enter", filter=has_completions)
    def _take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter")
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    del _send, _take, _break
    return keys


def _make_private(history: Path) -> None:
    """What was typed is for this person alone."""
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch(mode=0o600, exist_ok=True)
