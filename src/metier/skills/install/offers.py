"""Skills that can be installed from a collection (a repository or folder), or from an index with pinned commits."""

import json
from collections import abc
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import pydantic
from msgspec import Struct
from pydantic import Field, JsonValue

from metier.definitions.names import canonical_name
from metier.definitions.nearest import find_nearest
from metier.definitions.skills.skill import SkillDefinition, load_skill
from metier.errors import ConfigError, UsageError
from metier.skills.source import FolderSource, GitSource, InstallSource, McpSource, parse_source
from metier.values import Value

MAX_NAMED = 10
"""Maximum number of skills in a hint."""

FILE_NAME = "skills-index.json"
_MAX_BYTES = 16 * 1_048_576


class Offer(Struct, frozen=True, kw_only=True):
    """A skill of a collection, described by its front matter."""

    name: str
    description: str
    folder: str
    """Path relative to the collection."""
    source: InstallSource


class CollectionFound(ConfigError):
    """The source is a collection, and the user must choose a skill."""

    def __init__(self, source: InstallSource, offers: abc.Sequence[Offer]) -> None:
        named = ", ".join(offer.name for offer in offers[:MAX_NAMED]) + (", …" if len(offers) > MAX_NAMED else "")
        super().__init__(
            f"{source.describe()!r} holds {len(offers)} skills",
            hint=f"Add --pick NAME,NAME or --all; available: {named}",
        )
        self.offers = tuple(offers)


def list_offers(tree: Path, source: InstallSource) -> tuple[Offer, ...]:
    """Return the skills below a folder, sorted by folder. A skill nested in another one is part of it."""
    found = sorted(path.parent.relative_to(tree).as_posix() for path in tree.rglob("*/SKILL.md"))
    own = [each for each in found if not any(each.startswith(f"{other}/") for other in found)]
    readings = ((folder, load_skill(tree / folder, own=True).skill) for folder in own)
    return tuple(_build_offer(skill, folder, source) for folder, skill in readings if skill is not None)


def pick_offers(offers: abc.Sequence[Offer], wanted: abc.Sequence[str]) -> tuple[Offer, ...]:
    """Return the skills with these names or folders, in this order. Raises `UsageError`."""
    known = {canonical_name(offer.name): offer for offer in offers} | {offer.folder: offer for offer in offers}
    picked: dict[str, Offer] = {}
    for name in wanted:
        offer = known.get(name) or known.get(canonical_name(name))
        if offer is None:
            nearest = find_nearest(name, [offer.name for offer in offers])
            hint = f"Did you mean {nearest!r}?" if nearest else "Omit --pick to list them"
            raise UsageError(f"The collection has no skill {name!r}", hint=hint)
        picked[offer.folder] = offer
    return tuple(picked.values())


def find_collection(source: InstallSource) -> InstallSource | None:
    """Return the collection that contains a skill; None for a repository with a single skill."""
    match source:
        case GitSource(subdir=subdir):
            return replace(source, subdir="") if subdir else None
        case FolderSource(path=path):
            return FolderSource(path=path.resolve().parent)
        case McpSource():
            return None


def _build_offer(skill: SkillDefinition, folder: str, source: InstallSource) -> Offer:
    return Offer(name=skill.name, description=skill.description, folder=folder, source=_below(source, folder))


def _below(source: InstallSource, folder: str) -> InstallSource:
    match source:
        case GitSource(subdir=subdir):
            return replace(source, subdir=f"{subdir}/{folder}" if subdir else folder)
        case FolderSource(path=path):
            return FolderSource(path=path / folder)
        case McpSource():
            return source  # each skill of a server has its own address


class _Row(Value):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Field(min_length=1, max_length=4_000)]
    source: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    subdir: str = ""


class _IndexFile(Value):
    skills: tuple[JsonValue, ...]


class IndexReading(NamedTuple):
    offers: tuple[Offer, ...]
    problems: tuple[str, ...] = ()
    """One message per unusable entry."""


# An index is a file: {"skills": [{"name": …, "description": …, "source": "https://…/repo.git", "commit": "40 digits",
# "subdir": "…"}]}. A repository without one is an index of its skills at the current commit.
def read_index(file: Path, *, allow_file: bool) -> IndexReading:
    """Return the skills of an index, each pinned to its commit, without unusable entries.

    Raises `ConfigError` if the file is not an index. With `allow_file`, it may refer to repositories on this machine; a
    downloaded index must not.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"Index {str(file)!r} has more than {_MAX_BYTES} bytes")
        rows = _IndexFile.model_validate(json.loads(file.read_bytes())).skills
    except OSError as error:
        raise ConfigError(f"Index {str(file)!r} cannot be read: {error.strerror}") from error
    except pydantic.ValidationError as error:
        raise ConfigError(f"Index {str(file)!r} is invalid at {_describe_first(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Index {str(file)!r} is not JSON") from error
    offers: list[Offer] = []
    problems: list[str] = []
    for number, row in enumerate(rows):
        try:
            offers.append(_build_index_offer(_Row.model_validate(row), allow_file=allow_file))
        except pydantic.ValidationError as error:
            problems.append(f"Entry {number} is skipped: {_describe_first(error)}")
        except UsageError as error:
            problems.append(f"Entry {number} is skipped: {error.sentence}")
    return IndexReading(tuple(offers), tuple(problems))


def _describe_first(error: pydantic.ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])!r}: {first['msg']}"


def _build_index_offer(row: _Row, *, allow_file: bool) -> Offer:
    """Build an offer. Raises `UsageError`."""
    text = f"{row.source}@{row.commit}" + (f"#{row.subdir}" if row.subdir else "")
    source = parse_source(text, allow_file=allow_file)
    if not isinstance(source, GitSource):
        raise UsageError(f"{row.source!r} of skill {row.name!r} is not a git address")
    # A ref or folder in the address would override the pinned commit.
    if (source.ref, source.subdir) != (row.commit, row.subdir.strip("/")):
        raise UsageError(f"{row.source!r} of skill {row.name!r} holds a ref or a folder")
    return Offer(name=row.name, description=row.description, folder=row.subdir, source=source)
