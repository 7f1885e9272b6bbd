"""The skills and tasks that a workspace has, before an agent chooses among them. Reads; chooses nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from metier.definitions.problems import Problem
from metier.definitions.skills.sources import find_bundled_folder
from metier.runtime.host import Host
from metier.skills.activation import Activation, FoundSkills, activate, build_roots, find_packages
from metier.skills.needs import SkillNeeds, describe_lacks, list_dependencies
from metier.skills.package import SkillPackage


class ActiveSkills(NamedTuple):
    packages: tuple[SkillPackage, ...]
    problems: tuple[Problem, ...]


def find_skills(place: Host) -> ActiveSkills:
    """The active skills of this workspace, and what is wrong with the others."""
    found = find_all_skills(place)
    activation = activate(found, place.settings.skills.enabled)
    return ActiveSkills(activation.packages, (*activation.problems, *list_unread(found, place.workspace)))


def open_needs(place: Host) -> SkillNeeds:
    """Says of a name whether that skill is active in this workspace, and why not."""
    return SkillNeeds(lambda: find_all_skills(place), place.settings.skills.enabled)


def find_blocked(place: Host, packages: Sequence[SkillPackage]) -> tuple[Problem, ...]:
    """What keeps the code of these skills from being called, as `agent check` says it."""
    needs = open_needs(place)
    return tuple(
        problem
        for package in packages
        if list_dependencies(package.definition)
        for problem in describe_lacks(package.definition, needs)
        if problem.severity == "error"
    )


def list_unread(found: FoundSkills, workspace: Path) -> tuple[Problem, ...]:
    """Folders and files of the workspace that were not read at all, such as links out of it."""
    return tuple(
        problem
        for problem in found.passed_over
        if problem.severity == "error" and Path(problem.file).is_relative_to(workspace)
    )


def find_all_skills(place: Host) -> FoundSkills:
    """Every skill that could be active here."""
    directory = place.workspace / place.settings.skills.dir
    roots = build_roots(
        home=place.home,
        workspace=place.workspace,
        bundled=find_bundled_folder(),
        directories=(directory,) if directory.is_dir() else (),
        trust=place.trust,
    )
    return find_packages(roots)


def activate_named(found: FoundSkills, names: Sequence[str]) -> Activation:
    """The skills of the workspace, and of the packages the trusted ones of these names."""
    return activate(found, tuple(names) or "none")
