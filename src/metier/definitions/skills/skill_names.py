"""Identifying skills by name, or by ID if skills of one source share a name. Pure.

The ID is the folder's path in its collection and is always unambiguous; the name is its short form.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from metier.definitions.names import canonical_name
from metier.definitions.nearest import hint_nearest


class NamedSkill(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


def is_called(skill: NamedSkill, name: str) -> bool:
    """Return True if the skill has this name or ID. Case is ignored, and `_` equals `-`."""
    return canonical_name(name) in (canonical_name(skill.name), canonical_name(skill.id))


def find_called[T: NamedSkill](skills: Iterable[T], name: str) -> T | None:
    """Find a skill by name, else by ID."""
    wanted, found = canonical_name(name), None
    for skill in skills:
        if canonical_name(skill.name) == wanted:
            return skill
        if found is None and canonical_name(skill.id) == wanted:
            found = skill
    return found


def list_shared_names(skills: Iterable[NamedSkill]) -> frozenset[str]:
    """Return the canonical names that several skills share; these skills are identified by ID."""
    ids: dict[str, set[str]] = defaultdict(set)
    for skill in skills:
        ids[canonical_name(skill.name)].add(canonical_name(skill.id))
    return frozenset(name for name, own in ids.items() if len(own) > 1)


def hint_skill(name: str, known: Iterable[str]) -> str:
    """Return a hint with the skills that have this name in their ID, else with the most similar name."""
    names = sorted({canonical_name(each) for each in known})
    meant = [each for each in names if each.rpartition("/")[2] == canonical_name(name).rpartition("/")[2]]
    if len(meant) > 1:
        return f"Several skills have this name: {', '.join(meant)}"
    return f"Did you mean {meant[0]!r}?" if meant else hint_nearest(canonical_name(name), names)
