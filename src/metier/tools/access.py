"""`.agent/tool-access.json`: which tools are turned off in a workspace, whatever rules and definitions say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from metier.definitions.contained_file import read_contained
from metier.definitions.problems import Problem
from metier.definitions.sources import WORKSPACE_FOLDERS
from metier.errors import ConfigError

FILE_NAME = "tool-access.json"
MAX_BYTES = 256 * 1024


class AccessFile:
    """The file of one workspace; where there is none, nothing is turned off."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._files = tuple(workspace / folder / FILE_NAME for folder in WORKSPACE_FOLDERS)

    def read(self) -> frozenset[str]:
        """The tools that are off now. Raises `ConfigError` when the file cannot be understood."""
        reading = self.load()
        if reading is None:
            return frozenset()
        reading.check()
        return reading.off

    def load(self) -> "AccessReading | None":
        """What the file says and what is wrong with it; nothing where there is none."""
        for file in self._files:
            try:
                file.stat()  # mostly there is none, and asking costs a fraction of trying to open it
                data = read_contained(file, within=self._workspace, limit=MAX_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                return AccessReading(file, problems=(_problem(file, f"The file cannot be read: {error.strerror}"),))
            return read_access(data, file=file)
        return None


@dataclass(frozen=True, slots=True)
class AccessReading:
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
    tools = _find_tools(root, data, file=file, problems=problems)
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


def _find_tools(root: JsonValue, data: bytes, *, file: Path, problems: list[Problem]) -> dict[str, JsonValue]:
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
