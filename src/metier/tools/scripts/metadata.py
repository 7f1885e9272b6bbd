"""What a script says about itself in its inline metadata (PEP 723). Reads text; runs and fetches nothing."""

import importlib.util
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, cast

from metier.dataclass import dataclass
from metier.definitions.releases import BadVersion, is_allowed
from metier.errors import ToolFailed
from metier.extras import hint_extra
from metier.lazy_regex import lazy_regex

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_BLOCK = lazy_regex(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The expression that the specification gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptMetadata:
    dependencies: "tuple[Requirement, ...]" = ()
    requires_python: str = ""
    """Clauses that the version of the interpreter must satisfy."""


def read_script(path: Path) -> bytes:
    """The bytes of a script. Raises `ToolFailed` for a symbolic link or an unreadable file."""
    if path.is_symlink():
        raise ToolFailed(f"Script {path.name!r} is a symbolic link", code="permission_denied")
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    except OSError as error:
        raise ToolFailed(f"Script {path.name!r} cannot be read: {error.strerror}", code="not_found") from error


def parse_script_metadata(text: str) -> ScriptMetadata:
    """Raises `ToolFailed`, with `permission_denied` where the script wants to choose where its packages come from."""
    document = _load_block(text)
    tool = document.get("tool")
    if isinstance(tool, dict) and "uv" in tool:
        raise ToolFailed(
            "The script has an inline [tool.uv] table, which could redirect where its packages come from",
            hint="Remove the table; indexes are configured by the UV_… variables of the agent",
            code="permission_denied",
        )
    return ScriptMetadata(
        dependencies=tuple(_parse_requirement(item) for item in _read_list(document, "dependencies")),
        requires_python=_check_clauses(str(document.get("requires-python", ""))),
    )


def _load_block(text: str) -> dict[str, object]:
    blocks = [match for match in _BLOCK.finditer(text.replace("\r\n", "\n")) if match.group("type") == "script"]
    if not blocks:
        return {}
    if len(blocks) > 1:
        raise ToolFailed("The script has more than one metadata block")
    lines = blocks[0].group("content").splitlines(keepends=True)
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        return cast("dict[str, object]", tomllib.loads(content))  # keys of a TOML table are strings
    except tomllib.TOMLDecodeError as error:
        raise ToolFailed(f"The script's metadata is not valid TOML: {error}") from error


def _read_list(document: dict[str, object], key: str) -> list[str]:
    value = document.get(key, [])
    if not isinstance(value, list):
        raise ToolFailed(f"The script's metadata field {key!r} is not a list of strings")
    items = cast("list[object]", value)  # elements of a TOML array
    if not all(isinstance(item, str) for item in items):
        raise ToolFailed(f"The script's metadata field {key!r} is not a list of strings")
    return [str(item) for item in items]


def _parse_requirement(text: str) -> "Requirement":
    if importlib.util.find_spec("packaging") is None:
        raise ToolFailed(
            "The script names packages, and uv, which prepares them, is not installed", hint=hint_extra("scripts")
        )
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ToolFailed(f"The script's dependency {text!r} is not valid: {error}") from error
    if requirement.url:
        raise ToolFailed(
            f"The script's dependency {text!r} names its own address",
            hint="Name a package and a version; packages come from the agent's index",
            code="permission_denied",
        )
    return requirement


def _check_clauses(clauses: str) -> str:
    try:
        is_allowed("3", clauses)
    except BadVersion as error:
        raise ToolFailed(f"The script's 'requires-python' is not valid: {clauses!r}") from error
    return clauses
