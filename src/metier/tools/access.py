"""`.agent/tool-access.json`: which tools are turned off in a workspace, whatever rules and definitions say."""

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import JsonValue

from metier.definitions.problems import Problem
from metier.definitions.sources import WORKSPACE_FOLDERS
from metier.errors import ConfigError

FILE_NAME = "tool-access.json"
MAX_BYTES = 256 * 1024


class AccessFile:
    """The file of one workspace; where there is none, nothing is turned off."""

    def __init__(self, workspace: Path) -> None:
        self._files = tuple(workspace / folder / FILE_NAME for folder in WORKSPACE_FOLDERS)

    def read(self) -> frozenset[str]:
        """The tools that are off now. Raises `ConfigError` when the file cannot be understood."""
        for file in self._files:
            try:
                with file.open("rb") as stream:
                    data = stream.read(MAX_BYTES + 1)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _broken(file, f"The file cannot be read: {error.strerror}") from error
            return parse_access(data, file=file)
        return frozenset()


def parse_access(data: bytes, *, file: Path) -> frozenset[str]:
    """Names of tools that are turned off: `{"tools": {"Bash": {"enabled": false}}}`, or short `{"Bash": false}`."""
    if len(data) > MAX_BYTES:
        raise _broken(file, f"The file is larger than {MAX_BYTES} bytes")
    try:
        root: JsonValue = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_refuse_twice(file))
    except UnicodeDecodeError as error:
        raise _broken(file, "The file is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _broken(file, f"The file is not JSON: {error.msg}", line=error.lineno) from error
    except RecursionError as error:
        raise _broken(file, "The file is nested too deeply") from error
    if not isinstance(root, dict):
        raise _broken(file, "The file must hold an object")
    tools = root.get("tools", root)
    if "tools" in root and len(root) > 1:
        other = next(name for name in root if name != "tools")
        raise _broken(file, f"Unknown key {other!r} beside 'tools'", line=_line_of(data, other))
    if not isinstance(tools, dict):
        raise _broken(file, "Key 'tools' must hold an object", line=_line_of(data, "tools"))
    return frozenset(name for name, value in tools.items() if not _is_enabled(name, value, file, data))


def _is_enabled(name: str, value: JsonValue, file: Path, data: bytes) -> bool:  # noqa: PLR0917 - one caller
    if isinstance(value, dict) and value.keys() == {"enabled"}:
        value = value["enabled"]
    if isinstance(value, bool):
        return value
    raise _broken(file, f'Tool {name!r} must be true, false, or {{"enabled": …}}', line=_line_of(data, name))


def _refuse_twice(file: Path) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    def build(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise _broken(file, f"Key {twice!r} stands twice")
        return found

    return build


def _line_of(data: bytes, name: str) -> int:
    index = data.find(json.dumps(name).encode())
    return data.count(b"\n", 0, max(index, 0)) + 1


def _broken(file: Path, message: str, *, line: int = 1) -> ConfigError:
    problem = Problem(severity="error", code="tool_access", message=message, file=str(file), line=line)
    hint = f"{message} (line {line})"
    return ConfigError(f"Tool access '{file}' cannot be used", hint=hint, problems=(problem,))
