"""What a hook is: a command of the user's that runs at a named moment of a run. Pure values."""

import re
from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field

from metier.lazy_regex import lazy_regex
from metier.messages import Value

type HookEvent = Literal[
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
    "PreCompact",
    "Notification",
    "SubagentStop",
    "Stop",
]

EVENTS: tuple[HookEvent, ...] = get_args(HookEvent.__value__)
TIMEOUT_SECONDS = 60.0
MOST_SECONDS = 600.0

_EVERYTHING = ("", "*")
_MCP_NAME = lazy_regex(r"([A-Za-z0-9][A-Za-z0-9_-]*)/(.+)", re.ASCII)
_OTHER_NAMES = {"delegate": "Task", "ask_user": "AskUserQuestion", "plan": "TodoWrite", "use_skill": "Skill"}
"""What other programs with hooks call the same."""


class HookCommand(Value):
    """One command and the moment at which it runs, as a run is pinned to it."""

    event: HookEvent
    matcher: str = ""
    """Of tool names, or of what else tells moments of one event apart; empty for all of them."""
    command: str
    args: tuple[str, ...] | None = None
    """Given: the command is a program and these are its arguments. Else it is a line for a shell."""
    timeout_seconds: float = Field(default=TIMEOUT_SECONDS, gt=0, le=MOST_SECONDS)
    required: bool = False
    """A failure of the hook counts as its no."""
    source: str = ""
    """The file that it stands in."""
    files: dict[str, str] = Field(default_factory=dict)
    """Files of the workspace that the command names → their hash when the run began."""


def matches(hook: HookCommand, subjects: Iterable[str]) -> bool:
    """One of these names is meant: the exact word, words with `|` between them, or a regular expression."""
    if hook.matcher in _EVERYTHING:
        return True
    pattern = re.compile(hook.matcher)
    return any(pattern.fullmatch(subject) is not None for subject in subjects)


def name_tool(tool: str) -> str:
    """A tool as hooks know it: tools of a server are `mcp__server__tool`."""
    found = _MCP_NAME.fullmatch(tool)
    return f"mcp__{found[1]}__{found[2]}" if found else tool


def list_names(tool: str) -> tuple[str, ...]:
    """Every name that a matcher may mean the tool by."""
    return tuple(dict.fromkeys((tool, name_tool(tool), _OTHER_NAMES.get(tool, tool))))
