"""Hook definitions: the user's commands for an event, read from settings or `.agent/hooks.yaml`. Starts nothing.

Settings files of other programs with the same convention are read too. The workspace files that a hook names are
pinned by their content.

    PreToolUse:
      - matcher: Write|Edit
        hooks:
          - type: command
            command: ./check.sh
            timeout: 10
"""

import hashlib
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self, cast, get_args

from msgspec import Meta, Struct, field
from msgspec.structs import replace
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from metier.definitions.files.contained_path import read_contained
from metier.definitions.problems import Problem
from metier.definitions.reader import (
    Context,
    Exact,
    FileModel,
    Items,
    Raw,
    Text,
    Word,
    context_of,
    fault,
    read_model,
)
from metier.definitions.text.json_text import read_json
from metier.definitions.text.yaml_text import Mapping, Node, Scalar, is_nothing
from metier.values import StoredValue

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

type HookDecision = Literal["", "ask", "deny", "stop"]
type HookStatus = Literal["ok", "failed", "timeout", "not_started", "too_much_output", "changed"]

EVENTS: tuple[HookEvent, ...] = get_args(HookEvent.__value__)
DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 600.0

_EVERYTHING = ("", "*")
_MCP_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)/(.+)", re.ASCII)
_OTHER_NAMES = {"delegate": "Task", "ask_user": "AskUserQuestion", "plan": "TodoWrite", "use_skill": "Skill"}
"""Tool names in the hook configurations of other programs."""


class HookCommand(StoredValue, frozen=True, kw_only=True):
    """One command and its event, as pinned by a run."""

    event: HookEvent
    matcher: str = ""
    """Pattern of tool names, or of the event's other subjects; empty to match all."""
    command: str
    args: tuple[str, ...] | None = None
    """If set, the command is a program with these arguments; otherwise it is a shell line."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    required: bool = False
    """A failure of the hook counts as a denial."""
    source: str = ""
    """The file that defines it."""
    files: dict[str, str] = field(default_factory=dict)
    """The workspace files that the command names, with their hashes at the start of the run."""


def matches(hook: HookCommand, subjects: Iterable[str]) -> bool:
    """Return True if the matcher fits one of these names: a word, words separated by `|`, or a regular expression."""
    if hook.matcher in _EVERYTHING:
        return True
    pattern = re.compile(hook.matcher)
    # The whole name, as in other programs: `Write` must not match `TodoWrite`.
    return any(pattern.fullmatch(subject) is not None for subject in subjects)


def name_tool(tool: str) -> str:
    """Return a tool's name in the hook convention: a server's tool is `mcp__server__tool`."""
    found = _MCP_NAME.fullmatch(tool)
    return f"mcp__{found[1]}__{found[2]}" if found else tool


def list_names(tool: str) -> tuple[str, ...]:
    """List all names that a matcher may use for a tool."""
    return tuple(dict.fromkeys((tool, name_tool(tool), _OTHER_NAMES.get(tool, tool))))


IMPORT = "import"


class HookReading(Struct, frozen=True, kw_only=True):
    hooks: tuple[HookCommand, ...] = ()
    problems: tuple[Problem, ...] = ()
    imports: str = ""
    """The program whose settings files are read too: `claude` or `none`; empty if the file does not set it."""


def _read_timeout(value: object, info: ValidationInfo) -> float:
    if not isinstance(value, Scalar):
        raise fault("bad_timeout", "must be a number of seconds")
    try:
        seconds = float(value.value)
    except ValueError:
        seconds = 0.0
    # The limit is ours, so a file that is valid for its own program isn't refused for it.
    if seconds > MAX_TIMEOUT_SECONDS and _is_foreign(info):
        return MAX_TIMEOUT_SECONDS
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise fault("bad_timeout", f"must be 1 to {MAX_TIMEOUT_SECONDS:g} seconds")
    return seconds


def _check_matcher(matcher: str) -> str:
    try:
        if matcher != "*":
            re.compile(matcher)
    except re.error as error:
        raise fault("bad_matcher", f"is not a regular expression: {error}") from error
    return matcher


def _is_foreign(info: ValidationInfo) -> bool:
    return context_of(info).unknown_keys == "ignore"


class _Hook(FileModel):
    type: Text = "command"
    command: Exact = ""
    args: Items[Exact] | None = None
    timeout: Annotated[float, BeforeValidator(_read_timeout)] = DEFAULT_TIMEOUT_SECONDS
    required: Text = "false"
    status_message: Raw | None = Field(default=None, alias="statusMessage")

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        # Other programs have more types, which their own files may use.
        if self.type != "command" and not _is_foreign(info):
            raise fault("unknown_type", f"A hook has the type {self.type!r}", "Only 'command' is supported")
        if self.type == "command" and not self.command.strip():
            raise fault("no_command", "A hook has no command")
        return self


class _Group(FileModel):
    matcher: Annotated[Exact, AfterValidator(_check_matcher)] = ""
    hooks: Items[_Hook]


class _HookFile(FileModel):
    shape_hint = "Start with an event such as PreToolUse:"

    imports: Word[Literal["none", "claude"]] | None = Field(default=None, alias=IMPORT)
    SessionStart: Items[_Group] = ()
    UserPromptSubmit: Items[_Group] = ()
    PreToolUse: Items[_Group] = ()
    PermissionRequest: Items[_Group] = ()
    PostToolUse: Items[_Group] = ()
    PostToolUseFailure: Items[_Group] = ()
    PreCompact: Items[_Group] = ()
    Notification: Items[_Group] = ()
    SubagentStop: Items[_Group] = ()
    Stop: Items[_Group] = ()


def read_hooks(root: Node | None, *, file: str, is_foreign: bool = False) -> HookReading:
    """Read a mapping of events to hooks.

    `is_foreign`: the file belongs to another program, so anything unknown in it is ignored.
    """
    if root is None or is_nothing(root):
        return HookReading()
    if is_foreign and isinstance(root, Mapping):
        root = replace(root, entries=tuple(entry for entry in root.entries if entry.key in EVENTS))
    context = Context(unknown_keys="ignore" if is_foreign else "error")
    reading = read_model(_HookFile, root, file=file, context=context)
    if reading.value is None or not isinstance(root, Mapping):
        return HookReading(problems=reading.problems)
    # In the order of the file: what a user trusted is the digest of the commands in this order.
    events: list[HookEvent] = [event for entry in root.entries for event in EVENTS if event == entry.key]
    hooks = [
        HookCommand(
            event=event,
            matcher=group.matcher,
            command=hook.command,
            args=hook.args,
            timeout_seconds=hook.timeout,
            required=hook.required.lower() in ("true", "yes"),
            source=file,
        )
        for event in events
        for group in cast("tuple[_Group, ...]", getattr(reading.value, event))  # one field for each event
        for hook in group.hooks
        if hook.type == "command"
    ]
    return HookReading(hooks=tuple(hooks), problems=reading.problems, imports=reading.value.imports or "")


def read_hooks_text(text: str, *, file: str, is_foreign: bool = False) -> HookReading:
    """Read hooks from JSON: the value of a setting, or another program's settings file."""
    if not text.strip():
        return HookReading()
    document = read_json(text, file=file)
    root = document.root
    if root is None:
        return HookReading(problems=document.problems)
    if is_foreign:
        entry = root.find("hooks") if isinstance(root, Mapping) else None
        return read_hooks(entry.value if entry else None, file=file, is_foreign=True)
    # The text is a single value in the file, so its line numbers are not those of the file.
    reading = read_hooks(root, file=file)
    return replace(reading, problems=tuple(replace(problem, line=None) for problem in reading.problems))


FOLDER_VARIABLES = ("CLAUDE_PROJECT_DIR", "AGENT_PROJECT_DIR")
MAX_CODE_BYTES = 8 * 1_048_576
_FOLDER = re.compile(r"\$\{?(?:" + "|".join(FOLDER_VARIABLES) + r")\}?")

_PIECES = re.compile(r"[^\s'\"`;&|()<>=,{}\[\]]+")


def expand_folder(text: str, workspace: Path) -> str:
    """Replace the variables for the project's folder."""
    # A function, because `re` would interpret backslashes in a replacement string.
    return _FOLDER.sub(lambda _: str(workspace), text)


def pin_files(hooks: Iterable[HookCommand], workspace: Path) -> tuple[HookCommand, ...]:
    """Add the hashes of the workspace files that the hooks' commands name."""
    return tuple(
        replace(hook, files={name: _digest(workspace, name) for name in _get_files(hook, workspace)}) for hook in hooks
    )


def get_changed_file(hook: HookCommand, workspace: Path) -> str:
    """Return the first file that changed since the start of the run; empty if none did."""
    return next((name for name, digest in hook.files.items() if _digest(workspace, name) != digest), "")


def _get_files(hook: HookCommand, workspace: Path) -> list[str]:
    line = expand_folder(hook.command, workspace)
    try:
        words = [hook.command] if hook.args is not None else shlex.split(line, comments=False)
    except ValueError:
        # A quote is not closed. The pieces of the words, below, still name the files.
        words = line.split()
    words += [expand_folder(word, workspace) for word in hook.args or ()]
    found: list[str] = []
    # Also the pieces of a word: `sh -c '. ./hook.sh'` names a file inside of one.
    for name in (piece for word in words for piece in (word.strip(";&|()"), *_PIECES.findall(word))):
        path = Path(os.path.normpath(workspace / name))
        if path.is_relative_to(workspace) and path.is_file():
            found.append(str(path.relative_to(workspace)))
    return list(dict.fromkeys(found))


def _digest(workspace: Path, name: str) -> str:
    try:
        data = read_contained(workspace / name, within=workspace, limit=MAX_CODE_BYTES)
    except OSError:
        return "unreadable"
    return hashlib.sha256(data).hexdigest()
