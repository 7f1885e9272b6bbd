"""What the commands of a chat work with."""

from collections.abc import Awaitable, Callable

from metier.cli.chat.turn_view import TurnView
from metier.dataclass import dataclass
from metier.engine.state import RunState
from metier.runtime.chat.chats import Chat
from metier.runtime.questions.asking import Asker
from metier.runtime.runs import Watch

type Turn = Callable[[Watch], Awaitable[RunState | None]]
"""Something that drives a turn; nothing comes of it where there is none to drive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a command may use."""

    chat: Chat
    ask: Asker
    drive: Callable[[Turn], Awaitable[None]]
    turns: TurnView
    read: Callable[[str], Awaitable[str]]
    """Asks for one line. Raises `EOFError` where there is none."""
    is_terminal: bool = False


class Leave(Exception):
    """The person wants to go."""
