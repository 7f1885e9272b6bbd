"""Names of tools, skills, agents and plugins in canonical form."""

import re
import unicodedata
from typing import Annotated, Literal, get_args

from pydantic import Field

from metier.errors import InvalidName
from metier.telemetry.excerpt import cut_end

MAX_NAME = 64
SKILL_PIN = "skill:"
"""Prefix of skill names among a run's pinned definitions."""

_USABLE = re.compile(rf"[\w-]{{1,{MAX_NAME}}}")
_ALLOWED = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME}}}")
# Python creates folders of this name next to code.
_RESERVED = frozenset({"__pycache__"})
_SUFFIX = ".py"

PLUGIN = "plugin/"


def canonical_name(name: str) -> str:
    """Return the canonical form, in lower case with hyphens: `Kalshi_Markets` and `kalshi-markets` are one skill."""
    return name.lower().replace("_", "-")


def check_name(name: str) -> None:
    """Raise `InvalidName` for separators, dots, spaces, control characters and more than 64 characters."""
    if not _ALLOWED.fullmatch(name) or name.lower() in _RESERVED:
        raise InvalidName(
            f"Name {_shown(name)} is not allowed",
            hint=f"Use 1 to {MAX_NAME} letters, digits, hyphens or underscores",
        )


def is_usable_name(name: str) -> bool:
    """Return True if a skill can have this name: letters of any script, digits, hyphens and underscores."""
    return _USABLE.fullmatch(name) is not None and name.lower() not in _RESERVED


def check_skill_id(name: str) -> None:
    """Check a skill's name, or its ID (names separated by slashes). Raises `InvalidName`."""
    for part in name.split("/"):
        check_name(part)


def canonical_script_name(name: str) -> str:
    """Return a script's name in lower case with its extension: `status`, `status.py` and `Status.py` are one script.

    Raises `InvalidName` if the name before the extension is invalid.
    """
    lowered = name.lower()
    stem = lowered.removesuffix(_SUFFIX)
    check_name(stem)
    return stem + _SUFFIX


def name_capability(skill: str) -> str:
    """Return the name of the tool that calls a skill's `impl.py`."""
    return f"{canonical_name(skill)}.invoke"


def _shown(name: str) -> str:
    return repr(cut_end(name, MAX_NAME))


def fold_id(id: str) -> str:  # noqa: A002 - the word of the format
    """Return an ID as case-insensitive file systems compare it: `Foo/Bar` and `foo/bar` are the same."""
    return unicodedata.normalize("NFKC", id).casefold()


type PluginName = Annotated[str, Field(pattern=rf"^{PLUGIN}[a-z0-9][a-z0-9._-]*$")]


type Profile = Literal["permissive", "guarded", "strict"]

PROFILES: tuple[Profile, ...] = get_args(Profile.__value__)
"""Most permissive first."""
