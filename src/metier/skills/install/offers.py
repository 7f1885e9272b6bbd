"""A repository or folder that holds several skills: what it offers, and which of them are wanted."""

from collections import abc
from dataclasses import replace
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.names import canonical_name
from metier.definitions.nearest import find_nearest
from metier.definitions.skills.skill import SkillDefinition, load_skill
from metier.errors import ConfigError, UsageError
from metier.skills.source import FolderSource, GitSource, InstallSource, McpSource

MOST_NAMED = 10
"""Skills that a hint names, where a collection holds many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One skill of a collection, as its front matter describes it."""

    name: str
    description: str
    folder: str
    """Below the collection."""
    source: InstallSource


class CollectionFound(ConfigError):
    """The source is no skill itself: it holds some, and one of them must be named."""

    def __init__(self, source: InstallSource, offers: abc.Sequence[Offer]) -> None:
        named = ", ".join(offer.name for offer in offers[:MOST_NAMED]) + (", …" if len(offers) > MOST_NAMED else "")
        super().__init__(
            f"{source.describe()!r} holds {len(offers)} skills",
            hint=f"Add --pick NAME,NAME or --all; there are: {named}",
        )
        self.offers = tuple(offers)


def list_offers(tree: Path, source: InstallSource) -> tuple[Offer, ...]:
    """The skills below a folder, by folder. One below another, such as a template in its assets, is a part of it."""
    found = sorted(path.parent.relative_to(tree).as_posix() for path in tree.rglob("*/SKILL.md"))
    own = [each for each in found if not any(each.startswith(f"{other}/") for other in found)]
    readings = ((folder, load_skill(tree / folder).skill) for folder in own)
    return tuple(_build_offer(skill, folder, source) for folder, skill in readings if skill is not None)


def pick_offers(offers: abc.Sequence[Offer], wanted: abc.Sequence[str]) -> tuple[Offer, ...]:
    """Those of these names or folders, in the order in which they are wanted. Raises `UsageError`."""
    known = {canonical_name(offer.name): offer for offer in offers} | {offer.folder: offer for offer in offers}
    picked: dict[str, Offer] = {}
    for name in wanted:
        offer = known.get(name) or known.get(canonical_name(name))
        if offer is None:
            nearest = find_nearest(name, [offer.name for offer in offers])
            hint = f"Did you mean {nearest!r}?" if nearest else "Without --pick they are listed"
            raise UsageError(f"The collection has no skill {name!r}", hint=hint)
        picked[offer.folder] = offer
    return tuple(picked.values())


def find_collection(source: InstallSource) -> InstallSource | None:
    """Where the neighbours of a skill are; nothing for one that is a repository of its own."""
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
            return source  # a server serves skills one by one
