"""`tool-access.json`: which tools are turned off in a workspace, whatever rules and definitions say.

It is in `.agent/` or in `context/`; what either file turns off is off.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct, field
from pydantic import JsonValue

from metier.definitions.files.contained_path import read_contained
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.errors import ConfigError

FILE_NAME = "tool-access.json"
MAX_BYTES = 256 * 1024


class AccessFile:
    """The files of one workspace; where there is none, nothing is turned off."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._own = tuple(workspace / folder / FILE_NAME for folder in WORKSPACE_FOLDERS)
        self._context = workspace / "context" / FILE_NAME

    def read(self) -> frozenset[str]:
        """The tools that are off now. Raises `ConfigError` when a file cannot be understood."""
        readings = self.load()
        for reading in readings:
            reading.check()
        return frozenset(name for reading in readings for name in reading.off)

    def check_names(self, known: Collection[str]) -> None:
        """Raises `ConfigError` for a tool that does not exist: turned off under a wrong name, it would stay on.

        Tools of a skill or of a server (`skill.tool`, `server/tool`) may be missing today and back tomorrow.
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
        """What each file says and what is wrong with it."""
        found = (self._load_first(self._own), self._load_first((self._context,)))
        return tuple(reading for reading in found if reading is not None)

    def _load_first(self, files: tuple[Path, ...]) -> "AccessReading | None":
        for file in files:
            try:
                file.stat()  # mostly there is none, and asking costs a fraction of trying to open it
                data = read_contained(file, within=self._workspace, limit=MAX_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                return AccessReading(file, problems=(_problem(file, f"The file cannot be read: {error.strerror}"),))
            return read_access(data, file=file)
        return None


class AccessReading(Struct, frozen=True):
    file: Path
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    """Every tool that is named, and its line."""
    off: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()

    def check(self) -> None:
        """Raises `ConfigError` with every problem."""
        if self.problems:
            first = self.problems[0]
            raise ConfigError(
                f"Tool access '{self.file}' cannot be used",
                hint=f"{first.message} (line {first.line})",
                problems=self.problems,
            )


def read_access(data: bytes, *, file: Path) -> AccessReading:
    """`{"tools": {"Bash": {"enabled": false}}}`, or short `{"Bash": false}`, with everything that is wrong in it."""
    if len(data) > MAX_BYTES:
        return AccessReading(file, problems=(_problem(file, f"The file is larger than {MAX_BYTES} bytes"),))
    twice: list[str] = []
    try:
        root: JsonValue = json.loads(data.decode("utf-8-sig"), object_pairs_hook=lambda pairs: _build(pairs, twice))
    except UnicodeDecodeError:
        return AccessReading(file, problems=(_problem(file, "The file is not UTF-8"),))
    except json.JSONDecodeError as error:
        return AccessReading(file, problems=(_problem(file, f"The file is not JSON: {error.msg}", line=error.lineno),))
    except RecursionError:
        return AccessReading(file, problems=(_problem(file, "The file is nested too deeply"),))
    problems = [_problem(file, f"Key {name!r} stands twice", line=_line_of(data, name, nth=2)) for name in twice]
    tools = _get_tools(root, data, file=file, problems=problems)
    enabled = {name: _read_enabled(value) for name, value in tools.items()}
    problems += [
        _problem(file, f'Tool {name!r} must be true, false, or {{"enabled": …}}', line=_line_of(data, name))
        for name, is_on in enabled.items()
        if is_on is None
    ]
    return AccessReading(
        file,
        lines={name: _line_of(data, name) for name in tools},
        off=frozenset(name for name, is_on in enabled.items() if is_on is False),
        problems=tuple(problems),
    )


def _unknown(name: str, known: Collection[str], reading: AccessReading) -> Problem:
    return Problem(
        severity="error",
        code="unknown_tool",
        message=f"No tool is called {name!r}",
        file=str(reading.file),
        line=reading.lines[name],
        hint=hint_nearest(name, known),
    )


def _get_tools(root: JsonValue, data: bytes, *, file: Path, problems: list[Problem]) -> dict[str, JsonValue]:
    if not isinstance(root, dict):
        problems.append(_problem(file, "The file must hold an object"))
        return {}
    if "tools" not in root:
        return root
    problems += [
        _problem(file, f"Unknown key {other!r} beside 'tools'", line=_line_of(data, other))
        for other in root
        if other != "tools"
    ]
    tools = root["tools"]
    if isinstance(tools, dict):
        return tools
    problems.append(_problem(file, "Key 'tools' must hold an object", line=_line_of(data, "tools")))
    return {}


def _read_enabled(value: JsonValue) -> bool | None:
    """None: it does not say."""
    if isinstance(value, dict) and value.keys() == {"enabled"}:
        value = value["enabled"]
    return value if isinstance(value, bool) else None


def _build(pairs: list[tuple[str, JsonValue]], twice: list[str]) -> dict[str, JsonValue]:
    names = [name for name, _ in pairs]
    twice += [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return dict(pairs)


def _line_of(data: bytes, name: str, *, nth: int = 1) -> int:
    index = -1
    for _ in range(nth):
        index = data.find(json.dumps(name).encode(), index + 1)
    return data.count(b"\n", 0, max(index, 0)) + 1


def _problem(file: Path, message: str, *, line: int = 1) -> Problem:
    return Problem(severity="error", code="tool_access", message=message, file=str(file), line=line)
