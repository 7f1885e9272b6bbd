"""What the commands of a chat work with."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from metier.cli.chat.permission_modes import PermissionModes
from metier.cli.chat.turn_view import TurnView
from metier.engine.state.run_state import RunState
from metier.runtime.chat.chats import Chat
from metier.runtime.questions.approval_questions import Asker
from metier.runtime.runs import Watch

type Turn = Callable[[Watch], Awaitable[RunState | None]]
"""Something that drives a turn; nothing comes of it where there is none to drive."""


class Desk(Struct, frozen=True, kw_only=True):
    """What a command may use."""

    chat: Chat
    ask: Asker
    drive: Callable[[Turn], Awaitable[None]]
    turns: TurnView
    read: Callable[[str], Awaitable[str]]
    """Asks for one line. Raises `EOFError` where there is none."""
    modes: PermissionModes
    is_terminal: bool = False


class Leave(Exception):
    """The person wants to go."""
