"""Dependencies between skills, with one definition of availability for checks, installation and runs."""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.definitions.skills.scripts import is_capability
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.skill_names import hint_skill
from metier.definitions.text.yaml_text import Entry, Mapping, Scalar, Sequence, flat_texts
from metier.skills.activation import FoundSkills, Selection, activate, find_package, hint_trust
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import is_trusted

ABSENT = "is not there"


class Lack(NamedTuple):
    """Why a required skill is unavailable."""

    name: str
    reason: str
    """Text that completes a sentence after "which"."""
    hint: str

    @property
    def code(self) -> str:
        return "unknown_skill" if self.reason == ABSENT else "unusable_skill"


class SkillNeeds:
    """Compares the skills that a skill mentions with those of this machine and workspace.

    The latter are loaded on the first comparison, because most skills mention no others.
    """

    def __init__(self, find: Callable[[], FoundSkills], selection: Selection) -> None:
        self._find = find
        self._selection: Selection = selection

    def find_lack(self, name: str) -> Lack | None:
        """Find the reason why a skill is unavailable. Return None if it is active."""
        if find_package(self._active, name) is not None:
            return None
        package = self._found.find(name)
        if package is None:
            return self._describe_absent(name)
        if not is_trusted(package):
            reason = "changed since it was trusted" if package.trusted_digest else "is not trusted"
            return Lack(name, reason, hint_trust(package))
        return Lack(name, "is not enabled", f"Add {package.definition.name!r} to AGENT_SKILLS")

    @cached_property
    def _found(self) -> FoundSkills:
        return self._find()

    @cached_property
    def _active(self) -> tuple[SkillPackage, ...]:
        return activate(self._found, self._selection).packages

    def _describe_absent(self, name: str) -> Lack:
        broken = self._found.find_broken(name)
        if broken is not None:
            return Lack(name, "cannot be loaded", broken.reason.render())
        known = [canonical_name(package.definition.name) for package in self._found.packages]
        return Lack(name, ABSENT, hint_skill(name, known) or "Add the skill, or take the name out")


def describe_lacks(skill: SkillDefinition, needs: SkillNeeds) -> list[Problem]:
    """Report inactive dependencies, without which the skill's code cannot be called."""
    entry = find_dependencies(skill)
    lacks = [lack for name in list_dependencies(skill) if (lack := needs.find_lack(name)) is not None]
    return [
        Problem(
            severity="error" if is_capability(skill) else "warning",
            code=lack.code,
            message=f"Contract field 'depends_on' names the skill {lack.name!r}, which {lack.reason}",
            file=str(skill.file),
            line=entry.line if entry is not None else 1,
            hint=lack.hint,
        )
        for lack in lacks
    ]


def list_needs(skill: SkillDefinition) -> tuple[str, ...]:
    """Return the skills that a skill may call and those that it depends on, without itself."""
    named = [*(skill.skills or ()), *list_dependencies(skill)]
    return tuple(dict.fromkeys(name for name in named if name not in ("inherit", skill.name)))


def list_dependencies(skill: SkillDefinition) -> tuple[str, ...]:
    """Return the skills that must be active so that the skill's code can be called."""
    entry = find_dependencies(skill)
    match entry.value if entry is not None else None:
        case Scalar(value=value):
            names: Iterable[str] = (part.strip() for part in value.split(","))
        case Sequence() as listed:
            names = flat_texts(listed)
        case _:
            names = ()
    named = [canonical_name(name) for name in names if name]
    return tuple(name for name in named if name != canonical_name(skill.name))


def find_dependencies(skill: SkillDefinition) -> Entry | None:
    """Find the dependencies in the front matter, at the top level or under `contract`."""
    nested = skill.contract.find("contract")
    inner = nested.value if nested is not None and isinstance(nested.value, Mapping) else None
    return skill.contract.find("depends_on") or (inner.find("depends_on") if inner is not None else None)
