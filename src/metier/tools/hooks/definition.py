"""Hook definitions: commands of the user that run at a named moment, read from settings or `.agent/hooks.yaml`.

Settings files of other programs with the same convention are read too. The workspace files that a hook names are
pinned by their content. Starts nothing.

    PreToolUse:
      - matcher: Write|Edit
        hooks:
          - type: command
            command: ./check.sh
            timeout: 10
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from msgspec import Struct
from pydantic import Field

from metier.definitions.files.contained_path import read_contained
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
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
_MCP_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)/(.+)", re.ASCII)
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
    """The file that it is in."""
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


IMPORT = "import"
IMPORTS = ("none", "claude")
_GROUP_KEYS = ("matcher", "hooks")
_HOOK_KEYS = ("type", "command", "args", "timeout", "required", "statusMessage")


class HookReading(Struct, frozen=True, kw_only=True):
    hooks: tuple[HookCommand, ...] = ()
    problems: tuple[Problem, ...] = ()
    imports: str = ""
    """Whose settings files are read too: `claude`, `none`, or nothing where the text does not say."""


def read_hooks(data: object, *, file: str, is_foreign: bool = False) -> HookReading:
    """`data` is a mapping of lists and texts, as YAML or JSON gives it.

    `is_foreign`: the file is another program's, and what Metier does not know of it is passed over in silence.
    """
    reader = _Reader(file=file, is_foreign=is_foreign)
    hooks = tuple(reader.read(data))
    return HookReading(hooks=hooks, problems=tuple(reader.problems), imports=reader.imports)


def read_hooks_text(text: str, *, file: str) -> HookReading:
    """The same from JSON. Text that is none is a problem."""
    if not text.strip():
        return HookReading()
    try:
        return read_hooks(json.loads(text), file=file)
    except (ValueError, RecursionError):
        return HookReading(problems=(_problem("not_json", "The hooks are not JSON", file=file),))


@dataclass(slots=True)
class _Reader:
    file: str
    is_foreign: bool
    problems: list[Problem] = field(default_factory=list[Problem])
    imports: str = ""

    def report(self, code: str, message: str, hint: str = "") -> None:
        self.problems.append(_problem(code, message, file=self.file, hint=hint))

    def read(self, data: object) -> Iterator[HookCommand]:
        if data is None:
            return
        if not isinstance(data, Mapping):
            self.report("not_a_mapping", "Hooks must be a mapping of events", "Begin with an event such as PreToolUse:")
            return
        for name, groups in cast("Mapping[object, object]", data).items():
            if name == IMPORT and not self.is_foreign:
                self._read_import(groups)
            elif name in EVENTS:
                yield from self._read_event(name, groups)
            elif not self.is_foreign:
                hint = hint_nearest(str(name), EVENTS) or f"Events are {', '.join(EVENTS)}"
                self.report("unknown_event", f"There is no event {str(name)!r} for hooks", hint)

    def _read_import(self, value: object) -> None:
        if value in IMPORTS:
            self.imports = str(value)
            return
        self.report("unknown_import", f"{IMPORT!r} of hooks must be one of {', '.join(IMPORTS)}, not {value!r}")

    def _read_event(self, event: HookEvent, groups: object) -> Iterator[HookCommand]:
        for group in self._read_list(groups, f"{event} must be a list"):
            if not isinstance(group, Mapping):
                self.report("wrong_type", f"{event} has an entry that is not a mapping")
                continue
            known = cast("Mapping[str, object]", group)
            self._check_keys(known, _GROUP_KEYS, event)
            matcher = self._read_matcher(known.get("matcher"), event)
            for hook in self._read_list(known.get("hooks"), f"{event} has an entry without a list of 'hooks'"):
                read = self._read_hook(hook, event=event, matcher=matcher)
                if read is not None:
                    yield read

    def _read_matcher(self, value: object, event: HookEvent) -> str:
        matcher = "" if value is None else str(value)
        try:
            if matcher != "*":
                re.compile(matcher)
        except re.error as error:
            self.report("bad_matcher", f"The matcher {matcher!r} of {event} is no regular expression: {error}")
        return matcher

    def _read_hook(self, hook: object, *, event: HookEvent, matcher: str) -> HookCommand | None:
        known: Mapping[str, object] = cast("Mapping[str, object]", hook) if isinstance(hook, Mapping) else {}
        kind = known.get("type", "command")
        command = known.get("command")
        if kind != "command":
            if not self.is_foreign:
                self.report("unknown_type", f"A hook of {event} has the type {kind!r}", "Only 'command' is supported")
            return None
        if not isinstance(command, str) or not command.strip():
            self.report("no_command", f"A hook of {event} has no command")
            return None
        self._check_keys(known, _HOOK_KEYS, event)
        args = known.get("args")
        return HookCommand(
            event=event,
            matcher=matcher,
            command=command,
            args=None if args is None else tuple(str(each) for each in self._read_list(args, "'args' must be a list")),
            timeout_seconds=self._read_timeout(known.get("timeout"), event),
            required=str(known.get("required", "false")).lower() in ("true", "yes"),
            source=self.file,
        )

    def _read_timeout(self, value: object, event: HookEvent) -> float:
        if value is None:
            return TIMEOUT_SECONDS
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = 0.0
        if seconds > MOST_SECONDS and self.is_foreign:
            return MOST_SECONDS
        if not 0 < seconds <= MOST_SECONDS:
            self.report("bad_timeout", f"The timeout of a hook of {event} must be 1 to {MOST_SECONDS:g} seconds")
            return TIMEOUT_SECONDS
        return seconds

    def _read_list(self, value: object, message: str) -> list[object]:
        if isinstance(value, list | tuple):
            return list(cast("list[object]", value))
        self.report("wrong_type", message)
        return []

    def _check_keys(self, known: Mapping[str, object], keys: tuple[str, ...], event: HookEvent) -> None:
        for key in known:
            if key not in keys and not self.is_foreign:
                hint = hint_nearest(str(key), keys) or f"Keys are {', '.join(keys)}"
                self.report("unknown_key", f"Unknown key {str(key)!r} in a hook of {event}", hint)


def _problem(code: str, message: str, *, file: str, hint: str = "") -> Problem:
    return Problem(severity="error", code=code, message=message, file=file, hint=hint)


FOLDER_VARIABLES = ("CLAUDE_PROJECT_DIR", "AGENT_PROJECT_DIR")
MAX_CODE_BYTES = 8 * 1_048_576
_FOLDER = re.compile(r"\$\{?(?:" + "|".join(FOLDER_VARIABLES) + r")\}?")

_PIECES = re.compile(r"[^\s'\"`;&|()<>=,{}\[\]]+")


def name_folder(text: str, workspace: Path) -> str:
    """The text with the folder in place of the variables that stand for it."""
    return _FOLDER.sub(lambda _: str(workspace), text)


def pin_files(hooks: Iterable[HookCommand], workspace: Path) -> tuple[HookCommand, ...]:
    """The hooks with the hashes of the files in the workspace that their commands name."""
    return tuple(
        hook.model_copy(update={"files": {name: _digest(workspace, name) for name in _find_files(hook, workspace)}})
        for hook in hooks
    )


def find_changed_file(hook: HookCommand, workspace: Path) -> str:
    """The first file that is no longer what it was when the run began; empty where none is."""
    return next((name for name, digest in hook.files.items() if _digest(workspace, name) != digest), "")


def _find_files(hook: HookCommand, workspace: Path) -> list[str]:
    line = name_folder(hook.command, workspace)
    try:
        words = [hook.command] if hook.args is not None else shlex.split(line, comments=False)
    except ValueError:
        words = line.split()
    words += [name_folder(word, workspace) for word in hook.args or ()]
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
