"""Names in definitions: of tools, skills, agents and plugins, in their canonical form."""

import re
import unicodedata
from typing import Annotated, Literal, get_args

from pydantic import Field

from metier.errors import InvalidName
from metier.telemetry.excerpt import cut_end

MAX_NAME = 64
SKILL_PIN = "skill:"
"""In front of the name of a skill among the definitions that a run is pinned to."""

_USABLE = re.compile(rf"[\w-]{{1,{MAX_NAME}}}")
_ALLOWED = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME}}}")
_RESERVED = frozenset({"__pycache__"})
_SUFFIX = ".py"

PLUGIN = "plugin/"


def canonical_name(name: str) -> str:
    """`Kalshi_Markets` and `kalshi-markets` are one skill: lower case, hyphens."""
    return name.lower().replace("_", "-")


def check_name(name: str) -> None:
    """Refuse what is not a plain name: separators, dots, spaces, control characters, more than 64 characters.

    Raises `InvalidName`.
    """
    if not _ALLOWED.fullmatch(name) or name.lower() in _RESERVED:
        raise InvalidName(
            f"Name {_shown(name)} is not allowed",
            hint=f"Use 1 to {MAX_NAME} letters, digits, hyphens or underscores",
        )


def is_usable_name(name: str) -> bool:
    """Return True if a skill can have this name: letters of any script, digits, hyphens and underscores."""
    return _USABLE.fullmatch(name) is not None and name.lower() not in _RESERVED


def check_skill_id(name: str) -> None:
    """Like `check_name`, for a name or an ID: plain names with slashes between them."""
    for part in name.split("/"):
        check_name(part)


def canonical_script_name(name: str) -> str:
    """`status`, `status.py` and `Status.py` are one script: lower case, with its extension.

    Raises `InvalidName` when what stands before the extension is not a plain name.
    """
    lowered = name.lower()
    stem = lowered.removesuffix(_SUFFIX)
    check_name(stem)
    return stem + _SUFFIX


def name_capability(skill: str) -> str:
    """The tool by which a run calls a skill's `impl.py`."""
    return f"{canonical_name(skill)}.invoke"


def _shown(name: str) -> str:
    return repr(cut_end(name, MAX_NAME))


def fold_id(id: str) -> str:  # noqa: A002 - the word of the format
    """The form in which two IDs are the same on a disk that knows no case: `Foo/Bar` and `foo/bar`."""
    return unicodedata.normalize("NFKC", id).casefold()


type PluginName = Annotated[str, Field(pattern=rf"^{PLUGIN}[a-z0-9][a-z0-9._-]*$")]


type Profile = Literal["permissive", "guarded", "strict"]

PROFILES: tuple[Profile, ...] = get_args(Profile.__value__)
"""The loosest first."""
