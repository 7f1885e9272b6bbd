"""How each skill stands here: active or not, what it brings, and why it cannot be loaded. Loads toolsets for real."""

from collections.abc import Iterator, Mapping
from dataclasses import field

from metier.cli.skill.catalog import SkillPlaces
from metier.cli.skill.confinement import open_skill_confinement
from metier.cli.skill.view import render_trust
from metier.dataclass import dataclass
from metier.definitions.names import canonical_name
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.skills.naming import is_called
from metier.definitions.skills.scripts import discover_scripts, find_missing_scripts
from metier.definitions.skills.skill import SkillDefinition
from metier.errors import SkillError
from metier.skills.activation import (
    OPT_IN,
    Activation,
    BrokenSkill,
    FoundSkills,
    Selection,
    activate,
    find_packages,
)
from metier.skills.install.placement import read_registry
from metier.skills.install.registry import Registry, RegistryEntry
from metier.skills.package import SkillPackage
from metier.skills.trust.digest import digest_tree
from metier.skills.trust.judgement import is_trusted
from metier.tools.toolsets.loader import ToolsetReading, load_toolsets

_TOLD_BY_A_LINE = ("unknown_skill", "skill_broken")
"""Problems of the activation that a status says already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillStatus:
    name: str
    active: bool
    reason: str = ""
    """Why it cannot be loaded; empty where it can."""
    note: str = ""
    """What keeps it from being used although it can be loaded."""
    scripts: int = 0
    toolsets: int = 0
    tools: tuple[str, ...] = ()
    """Full names of what its toolsets offer; known for active skills only, since asking runs their code."""
    source: str = ""
    path: str = ""
    trusted: bool = False
    is_distrusted: bool = False
    """It is named, and left out because the user has not trusted these bytes."""
    commit: str | None = None
    tree: str | None = None
    """Fingerprint of the bytes; nothing where the folder has none."""

    @property
    def short_sha(self) -> str:
        return (self.commit or self.tree or "")[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    skills: tuple[SkillStatus, ...]
    """Sorted by canonical name; of two with one name the active one first."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """Everything that a status is built from."""

    found: FoundSkills
    activation: Activation
    selection: Selection
    registry: Registry
    toolsets: ToolsetReading = field(default_factory=ToolsetReading)


async def examine_skills(places: SkillPlaces, environ: Mapping[str, str]) -> StatusReport:
    """Find, choose and load the skills as a run would. Nothing of an inactive or untrusted skill is executed."""
    found = find_packages(places.roots)
    activation = activate(found, places.selection)
    toolsets = await load_toolsets(activation.packages, environ, confinement=await open_skill_confinement(places))
    try:
        scene = _Scene(
            found=found,
            activation=activation,
            selection=places.selection,
            registry=read_registry(places.roots.home),
            toolsets=toolsets,
        )
        problems = [problem for problem in activation.problems if problem.code not in _TOLD_BY_A_LINE]
        problems += found.passed_over
        problems += [problem for problem in toolsets.problems if problem.severity == "warning"]
        return StatusReport(skills=_build_statuses(scene), problems=tuple(problems))
    finally:
        await toolsets.aclose()


def describe_skills(places: SkillPlaces) -> StatusReport:
    """The same without loading a toolset: nothing of any skill is executed."""
    found = find_packages(places.roots)
    activation = activate(found, places.selection)
    scene = _Scene(
        found=found,
        activation=activation,
        selection=places.selection,
        registry=read_registry(places.roots.home),
    )
    return StatusReport(skills=_build_statuses(scene), problems=found.passed_over)


def _build_statuses(scene: _Scene) -> tuple[SkillStatus, ...]:
    statuses = [_describe(package, scene) for package in scene.found.packages]
    statuses += [_describe_broken(skill, scene.selection) for skill in scene.found.broken]
    known = {canonical_name(status.name) for status in statuses}
    lost = [entry for key, entry in scene.registry.skills.items() if key not in known]
    statuses += [_describe_lost(entry, scene.selection) for entry in lost]
    known |= {entry.name_canonical for entry in lost}
    statuses += [
        _describe_unknown(name, known)
        for name in _named(scene.selection)
        if canonical_name(name) not in known and scene.found.find(name) is None
    ]
    return tuple(sorted(statuses, key=lambda status: (canonical_name(status.name), not status.active, status.path)))


def _describe(package: SkillPackage, scene: _Scene) -> SkillStatus:
    definition = package.definition
    is_active = any(package is active for active in scene.activation.packages)
    trusted = is_trusted(package)
    note = "" if is_active else _find_note(package, scene, trusted=trusted)
    # A package that the selection names and the activation leaves out; one that another skill hides is not missed.
    is_left_out = not (is_active or trusted or _find_winner(package, scene)) and _is_named_package(
        package, scene.selection
    )
    prefix = f"{canonical_name(definition.name)}."
    mine = [tool.info.name for tool in scene.toolsets.tools if is_active and tool.info.name.startswith(prefix)]
    return SkillStatus(
        name=definition.name,
        active=is_active,
        reason="; ".join(_find_failures(package, scene, is_active=is_active)),
        note=note,
        is_distrusted=is_left_out,
        scripts=len(discover_scripts(definition)),
        toolsets=len(definition.toolsets),
        tools=tuple(mine),
        source=package.source,
        path=str(package.folder),
        trusted=trusted,
        commit=package.commit,
        tree=_find_tree(package),
    )


def _find_failures(package: SkillPackage, scene: _Scene, *, is_active: bool) -> Iterator[str]:
    yield from _find_missing_scripts(package.definition)
    for failure in scene.toolsets.failures if is_active else ():
        if failure.package is package:
            yield f"toolset {failure.toolset!r}: {failure.message}" if failure.toolset else failure.message


def _find_missing_scripts(definition: SkillDefinition) -> Iterator[str]:
    if not definition.scripts:
        return
    if not (definition.folder / "scripts").is_dir():
        yield "the folder 'scripts' is missing"
        return
    for listed in find_missing_scripts(definition):
        yield f"script {listed!r} is missing"


def _find_note(package: SkillPackage, scene: _Scene, *, trusted: bool) -> str:
    if winner := _find_winner(package, scene):
        return f"hidden by the one of {winner.source}"
    return "" if trusted else render_trust(is_trusted=False, was_trusted=package.trusted_digest is not None)


def _find_winner(package: SkillPackage, scene: _Scene) -> SkillPackage | None:
    """The active skill that has the same name."""
    name = canonical_name(package.definition.name)
    return next((each for each in scene.activation.packages if canonical_name(each.definition.name) == name), None)


def _find_tree(package: SkillPackage) -> str | None:
    try:
        return digest_tree(package.folder).tree
    except SkillError:
        return None


def _describe_broken(skill: BrokenSkill, selection: Selection) -> SkillStatus:
    place = f" (SKILL.md line {skill.reason.line})" if skill.reason.line else ""
    is_active = skill.source not in OPT_IN or selection == "all-untrusted" or _is_named(skill.name, selection)
    return SkillStatus(
        name=skill.name,
        active=is_active,
        reason=f"{skill.reason.message}{place}",
        source=skill.source,
        path=str(skill.folder),
    )


def _describe_lost(entry: RegistryEntry, selection: Selection) -> SkillStatus:
    return SkillStatus(
        name=entry.name,
        active=selection == "all-untrusted" or _is_named(entry.name, selection),
        reason="the folder is gone",
        source="installed",
        path=entry.installed_path,
        commit=entry.commit_sha,
    )


def _describe_unknown(name: str, known: set[str]) -> SkillStatus:
    hint = hint_nearest(canonical_name(name), known)
    return SkillStatus(name=name, active=True, reason=f"not found{f'. {hint}' if hint else ''}")


def _named(selection: Selection) -> tuple[str, ...]:
    return () if isinstance(selection, str) else selection


def _is_named_package(package: SkillPackage, selection: Selection) -> bool:
    return package.source in OPT_IN and any(is_called(package.definition, name) for name in _named(selection))


def _is_named(name: str, selection: Selection) -> bool:
    return canonical_name(name) in {canonical_name(named) for named in _named(selection)}
