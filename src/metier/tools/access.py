"""`tool-access.json`: the tools that are turned off in a workspace, whatever rules and definitions say.

It is in `.agent/` or in `context/`. A tool is off if either file turns it off.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field
from pydantic import BeforeValidator

from metier.definitions.files.contained_path import read_contained
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.reader import FileModel, fault, read_model
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.definitions.text.json_text import read_json
from metier.definitions.text.yaml_text import Entry, Mapping, Scalar
from metier.errors import ConfigError

FILE_NAME = "tool-access.json"
MAX_BYTES = 256 * 1024


class AccessFile:
    """The access files of one workspace. Without any, no tool is turned off."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._own = tuple(workspace / folder / FILE_NAME for folder in WORKSPACE_FOLDERS)
        self._context = workspace / "context" / FILE_NAME

    def read(self) -> frozenset[str]:
        """Return the tools that are off now. Raises `ConfigError` if a file is invalid."""
        readings = self.load()
        for reading in readings:
            reading.check()
        return frozenset(name for reading in readings for name in reading.off)

    def check_names(self, known: Collection[str]) -> None:
        """Raise `ConfigError` for an unknown tool: with a typo in its name, a tool would stay on.

        Tools of a skill or server (`skill.tool`, `server/tool`) are accepted, because they may be missing temporarily.
        """
        for reading in self.load():
            unknown = [name for name in reading.lines if name not in known and "." not in name and "/" not in name]
            if unknown:
                problems = tuple(_unknown(name, known, reading) for name in unknown)
                raise ConfigError(
                    f"Tool access '{reading.file}' turns off what does not exist",
                    hint=problems[0].hint or "Correct the name, or take it out",
                    problems=problems,
                )

    def load(self) -> "tuple[AccessReading, ...]":
        """Read the access files, with their problems."""
        found = (self._load_first(self._own), self._load_first((self._context,)))
        return tuple(reading for reading in found if reading is not None)

    def _load_first(self, files: tuple[Path, ...]) -> "AccessReading | None":
        for file in files:
            try:
                file.stat()  # usually missing, and `stat` costs a fraction of `read_contained`
                data = read_contained(file, within=self._workspace, limit=MAX_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                message = f"The file cannot be read: {error.strerror}"
                return AccessReading(file, problems=(_problem(file, "unreadable", message),))
            return read_access(data, file=file)
        return None


class AccessReading(Struct, frozen=True):
    file: Path
    lines: dict[str, int] = field(default_factory=dict[str, int])
    """The line of every tool in the file."""
    off: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()

    def check(self) -> None:
        """Raise `ConfigError` with all problems, if there are any."""
        if self.problems:
            first = self.problems[0]
            raise ConfigError(
                f"Tool access '{self.file}' cannot be used",
                hint=f"{first.message} (line {first.line})",
                problems=self.problems,
            )


def read_access(data: bytes, *, file: Path) -> AccessReading:
    """Read `{"tools": {"Bash": {"enabled": false}}}`, or short `{"Bash": false}`, and all problems."""
    if len(data) > MAX_BYTES:
        return AccessReading(
            file, problems=(_problem(file, "file_too_large", f"The file is larger than {MAX_BYTES} bytes"),)
        )
    document = read_json(data, file=str(file))
    if (root := document.root) is None:
        return AccessReading(file, problems=document.problems)
    if isinstance(root, Mapping) and root.find("tools") is None:
        root = Mapping((Entry("tools", root.line, root),), root.line)
    reading = read_model(_Access, root, file=str(file))
    tools = root.find_value("tools") if isinstance(root, Mapping) else None
    return AccessReading(
        file,
        lines={entry.key: entry.line for entry in tools.entries} if isinstance(tools, Mapping) else {},
        off=frozenset(name for name, is_on in reading.value.tools.items() if not is_on)
        if reading.value
        else frozenset(),
        problems=tuple(sorted((*document.problems, *reading.problems), key=lambda problem: problem.line or 0)),
    )


def _read_enabled(value: object) -> bool:
    if isinstance(value, Mapping) and [entry.key for entry in value.entries] == ["enabled"]:
        value = value.entries[0].value
    if isinstance(value, Scalar) and value.is_plain and value.value in ("true", "false"):
        return value.value == "true"
    raise fault("bad_value", 'must be true, false, or {"enabled": …}')


def _read_tools(value: object) -> object:
    if not isinstance(value, Mapping):
        raise fault("not_a_mapping", "must be a mapping")
    # Unlike `Entries`, this keeps null: it must be reported, because a tool meant to be off would stay on.
    return {entry.key: entry.value for entry in value.entries}


class _Access(FileModel):
    tools: Annotated[dict[str, Annotated[bool, BeforeValidator(_read_enabled)]], BeforeValidator(_read_tools)]


def _unknown(name: str, known: Collection[str], reading: AccessReading) -> Problem:
    return _problem(
        reading.file,
        "unknown_tool",
        f"No tool is called {name!r}",
        line=reading.lines[name],
        hint=hint_nearest(name, known),
    )


def _problem(file: Path, code: str, message: str, *, line: int = 1, hint: str = "") -> Problem:
    return Problem(severity="error", code=code, message=message, file=str(file), line=line, hint=hint)
