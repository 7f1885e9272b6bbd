"""Tab completion in a chat: commands, their arguments, files after `@`, and names of skills."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import override

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from metier.cli.chat.slash_commands import list_commands
from metier.errors import MetierError
from metier.runtime.chat.chats import Chat

MAX_FILES = 200
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", "runs"})
_DESCRIPTION = 60


class ChatCompleter(Completer):
    """Commands after `/`, what they take after them, paths after `@`, and the names of skills anywhere."""

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
            # Whatever is wrong with the agent is said when the turn is sent.
            return []
        return [(package.definition.name, package.definition.description[:_DESCRIPTION]) for package in packages]


def get_word(before: str) -> str:
    """Return the word being typed: the text after the last blank."""
    return before.rsplit(maxsplit=1)[-1] if before.split() and not before[-1].isspace() else ""


def completes_by_itself(document: Document) -> bool:
    """While a command or a path is typed, what it may become is shown without Tab."""
    before = document.text_before_cursor
    return get_word(before).startswith("@") or (before.startswith("/") and not before[1:2].isspace())


def list_paths(workspace: Path, word: str) -> Iterator[tuple[str, str]]:
    """Yield the entries of the folder being typed, each with the `@` before it; folders end in a slash."""
    folder, _, begun = word[1:].rpartition("/")
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
        hidden = entry.name.startswith(".") and not begun.startswith(".")
        if hidden or entry.name in _SKIPPED or not entry.name.casefold().startswith(begun.casefold()):
            continue
        path = f"{folder}/{entry.name}" if folder else entry.name
        yield (f"@{path}/" if entry.is_dir(follow_symlinks=False) else f"@{path}"), ""
        shown += 1
        if shown == MAX_FILES:
            return
