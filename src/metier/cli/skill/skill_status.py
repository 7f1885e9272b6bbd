"""The status of each skill and package here: active or not, its contents, and why it cannot be loaded.

`agent skills` shows one row per skill, `list` and `info` the packages.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from metier.cli.shared.context import current_workspace, home_folder
from metier.cli.shared.output import problem_as_json
from metier.cli.skill.view import reference_as_json, render_origin, render_reference, render_report, render_trust, safe
from metier.cli.skill.workspace_skills import SkillListing, SkillPlaces, keep_active, open_catalog, scan_skills
from metier.definitions.names import canonical_name, check_skill_id, name_capability
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import CatalogSkill
from metier.definitions.skills.scripts import discover_scripts, is_capability, list_references, report_missing_scripts
from metier.definitions.skills.skill_names import hint_skill, is_called
from metier.errors import SkillError, SkillNotFound
from metier.runtime.confinement import open_confinement
from metier.runtime.host import Host
from metier.skills.activation import (
    OPT_IN,
    BrokenSkill,
    FoundSkills,
    Selection,
    SkillRoots,
    find_package,
    get_packages,
)
from metier.skills.capabilities_report import build_report
from metier.skills.install.installed import RegistryEntry
from metier.skills.install.placement import find_registry
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import digest_tree, is_trusted
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.toolsets.loader import ToolsetReading, load_toolsets


async def open_skill_confinement(places: SkillPlaces) -> Confinement:
    """Open the sandbox for code of skills, as in a run. Raises `SandboxUnavailable`."""
    host = Host(
        settings=places.settings,
        workspace=current_workspace(),
        home=home_folder(),
        environ=dict(os.environ),
        trust=places.trust,
    )
    return await open_confinement(host)


def get_package(roots: SkillRoots, name: str) -> SkillPackage:
    """Return the package of that name; installed ones take precedence over bundled and workspace ones."""
    check_skill_id(name)
    found = get_packages(roots)
    order = ("installed", "user", "bundled", "workspace", "directory")
    package = find_package(sorted(found.packages, key=lambda package: order.index(package.source)), name)
    if package is None:
        raise _not_found(found, name)
    return package


def get_winner(roots: SkillRoots, name: str) -> SkillPackage:
    """Return the skill that a run would use for that name, by the same precedence as `agent check`."""
    check_skill_id(name)
    found = get_packages(roots)
    package = found.find(name)
    if package is None:
        raise _not_found(found, name)
    return package


def _not_found(found: FoundSkills, name: str) -> SkillError:
    broken = found.find_broken(name)
    if broken:
        return SkillError(f"Skill {name!r} cannot be loaded", hint=broken.reason.render())
    hint = (
        hint_skill(name, [package.definition.name for package in found.packages])
        or "Run `agent skills list` to list skills"
    )
    return SkillNotFound(f"No skill is called {name!r}", hint=hint)


def _list_packages(listing: SkillListing) -> list[dict[str, object]]:
    """One row per package, sorted by canonical name."""
    found, registry = listing.found, listing.registry
    active = {package.folder for package in listing.activation.packages}
    rows = [
        _row(package, registry.find(package.definition.name), is_active=package.folder in active)
        for package in found.packages
        if package.source in OPT_IN
    ]
    shown = {row["name_canonical"] for row in rows}
    rows += [_lost_row(entry, found) for key, entry in registry.skills.items() if key not in shown]
    return sorted(rows, key=lambda row: (str(row["name_canonical"]), str(row["path"])))


def describe_package(package: SkillPackage, roots: SkillRoots) -> tuple[dict[str, object], list[str]]:
    """Describe a package as JSON and as lines with the same facts."""
    definition = package.definition
    entry = find_registry(roots.home)[0].find(definition.name) if package.source in ("installed", "user") else None
    digest = digest_tree(package.folder)
    report = build_report(definition, digest)
    references = list_references(definition)
    row = _row(package, entry, is_active=False)
    details: dict[str, object] = {key: value for key, value in row.items() if key != "active"}
    details |= {
        "description": definition.description,
        "author": definition.author,
        "license": definition.license,
        "repository": definition.repository,
        "git_url": entry.git_url if entry else None,
        "branch": entry.branch if entry else None,
        "tag": entry.tag if entry else None,
        "subdir": entry.subdir if entry else "",
        "installed_at": entry.installed_at.isoformat() if entry else None,
        "tree": digest.tree,
        "trusted_digest": package.trusted_digest,
        "references_index": [reference_as_json(file) for file in references],
        "report": report.model_dump(mode="json"),
    }
    facts = {
        "Version": definition.version,
        "Author": definition.author,
        "License": definition.license,
        "Repository": definition.repository,
        "Source": package.source,
        "From": render_origin(entry),
        "Folder": str(package.folder),
        "Commit": package.commit,
        "Tree": digest.tree,
        "State": str(row["state"]),
        "References": ", ".join(map(render_reference, references)),
    }
    lines = [f"{safe(definition.name)}: {safe(definition.description)}"]
    lines += [f"  {title}: {safe(value)}" for title, value in facts.items() if value]
    return details, lines + render_report(report)


def _row(package: SkillPackage, entry: RegistryEntry | None, *, is_active: bool) -> dict[str, object]:
    definition = package.definition
    trusted = is_trusted(package)
    return {
        "name": definition.name,
        "name_canonical": canonical_name(definition.name),
        "version": definition.version,
        "source": package.source,
        "commit": package.commit,
        "origin": render_origin(entry) if package.source == "installed" else None,
        "path": str(package.folder),
        "scripts": len(discover_scripts(definition)),
        "toolsets": len(definition.toolsets),
        "trusted": trusted,
        "active": is_active,
        "state": render_trust(is_trusted=trusted, was_trusted=package.trusted_digest is not None),
    }


def _lost_row(entry: RegistryEntry, found: FoundSkills) -> dict[str, object]:
    broken = found.find_broken(entry.name_canonical)
    return {
        "name": entry.name,
        "name_canonical": entry.name_canonical,
        "version": None,
        "source": "installed",
        "commit": entry.commit_sha,
        "origin": render_origin(entry),
        "path": entry.installed_path,
        "scripts": 0,
        "toolsets": 0,
        "trusted": False,
        "active": False,
        "state": f"cannot be loaded: {safe(broken.reason.message)}" if broken else "the folder is gone",
    }


_TOLD_BY_A_LINE = ("unknown_skill", "skill_broken")
"""Codes of activation problems that a status already shows."""


class SkillStatus(Struct, frozen=True, kw_only=True):
    name: str
    active: bool
    id: str = ""
    """The path below the skills folder, such as `foo/baz`; empty for a missing skill."""
    reason: str = ""
    """Why it cannot be loaded; empty if it can."""
    note: str = ""
    """Why it is not used although it can be loaded."""
    scripts: int = 0
    toolsets: int = 0
    tools: tuple[str, ...] = ()
    """Full names of its toolsets' tools; known for active skills only, because listing them runs their code."""
    source: str = ""
    path: str = ""
    trusted: bool = False
    is_distrusted: bool = False
    """It is enabled by name, but inactive because the user has not trusted these bytes."""
    commit: str | None = None
    tree: str | None = None
    """Digest of the folder; None if it cannot be computed."""

    @property
    def short_sha(self) -> str:
        return (self.commit or self.tree or "")[:8]


class StatusReport(Struct, frozen=True, kw_only=True):
    skills: tuple[SkillStatus, ...]
    """Sorted by canonical name, active ones first."""
    problems: tuple[Problem, ...] = ()


class _Scene(Struct, frozen=True):
    """The input for building statuses."""

    listing: SkillListing
    toolsets: ToolsetReading


async def examine_skills(places: SkillPlaces, environ: Mapping[str, str]) -> StatusReport:
    """Find, choose and load the skills as a run would. Nothing of an inactive or untrusted skill is executed."""
    listing = scan_skills(places)
    packages = listing.activation.packages
    toolsets = await load_toolsets(packages, environ, confinement=await open_skill_confinement(places))
    try:
        problems = [problem for problem in listing.activation.problems if problem.code not in _TOLD_BY_A_LINE]
        problems += listing.found.passed_over
        problems += [problem for problem in toolsets.problems if problem.severity == "warning"]
        return StatusReport(skills=_build_statuses(_Scene(listing, toolsets)), problems=tuple(problems))
    finally:
        await toolsets.aclose()


async def list_tool_names(package: SkillPackage, places: SkillPlaces) -> list[str]:
    """List the full names of a skill's tools. Loads the toolsets of trusted skills only, because that runs code."""
    names = [name_capability(package.definition.name)] if is_capability(package.definition) else []
    if package.definition.toolsets and is_trusted(package):
        confinement = await open_skill_confinement(places)
        toolsets = await load_toolsets([package], os.environ, confinement=confinement)
        await toolsets.aclose()
        names += [tool.info.name for tool in toolsets.tools]
    return sorted(names)


def _build_statuses(scene: _Scene) -> tuple[SkillStatus, ...]:
    found, selection = scene.listing.found, scene.listing.places.selection
    statuses = [_describe(package, scene) for package in found.packages]
    statuses += [_describe_broken(skill, selection) for skill in found.broken]
    known = {canonical_name(status.name) for status in statuses}
    lost = [entry for key, entry in scene.listing.registry.skills.items() if key not in known]
    statuses += [_describe_lost(entry, selection) for entry in lost]
    known |= {entry.name_canonical for entry in lost}
    statuses += [
        _describe_unknown(name, known)
        for name in _named(selection)
        if canonical_name(name) not in known and found.find(name) is None
    ]
    return tuple(sorted(statuses, key=lambda status: (canonical_name(status.name), not status.active, status.path)))


def _describe(package: SkillPackage, scene: _Scene) -> SkillStatus:
    definition = package.definition
    is_active = any(package is active for active in scene.listing.activation.packages)
    trusted = is_trusted(package)
    note = _get_note(package, scene, is_active=is_active, trusted=trusted)
    # A package that the selection names but the activation leaves out, and not because another skill overrides it.
    is_left_out = not (is_active or trusted or _find_winner(package, scene)) and _is_named_package(
        package, scene.listing.places.selection
    )
    prefix = f"{canonical_name(definition.name)}."
    mine = [tool.info.name for tool in scene.toolsets.tools if is_active and tool.info.name.startswith(prefix)]
    return SkillStatus(
        name=definition.name,
        id=definition.id if "/" in definition.id else definition.name,
        active=is_active,
        reason="; ".join(_list_failures(package, scene, is_active=is_active)),
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


def _list_failures(package: SkillPackage, scene: _Scene, *, is_active: bool) -> Iterator[str]:
    yield from (problem.message for problem in report_missing_scripts(package.definition))
    for owner, failure in scene.toolsets.failures if is_active else ():
        if owner is package:
            yield f"toolset {failure.toolset!r}: {failure.message}" if failure.toolset else failure.message


def _get_note(package: SkillPackage, scene: _Scene, *, is_active: bool, trusted: bool) -> str:
    if not is_active and (winner := _find_winner(package, scene)):
        return f"overridden by the skill from {winner.source}"
    return "" if trusted else render_trust(is_trusted=False, was_trusted=package.trusted_digest is not None)


def _find_winner(package: SkillPackage, scene: _Scene) -> SkillPackage | None:
    """Find the active skill of the same name."""
    name = canonical_name(package.definition.name)
    return next(
        (each for each in scene.listing.activation.packages if canonical_name(each.definition.name) == name), None
    )


def _find_tree(package: SkillPackage) -> str | None:
    try:
        return digest_tree(package.folder).tree
    except SkillError:
        return None


def _describe_broken(skill: BrokenSkill, selection: Selection) -> SkillStatus:
    host = f" (SKILL.md line {skill.reason.line})" if skill.reason.line else ""
    is_active = skill.source not in OPT_IN or selection == "all-untrusted" or _is_named(skill.name, selection)
    return SkillStatus(
        name=skill.name,
        active=is_active,
        reason=f"{skill.reason.message}{host}",
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


type Row = dict[str, object]

_TOLD = ("shadowed_skill", "duplicate_name", "link_loop")


class UsableSkills(Struct, frozen=True, kw_only=True):
    rows: tuple[Row, ...]
    """Usable skills first; then the others, each with the reason `why` and possibly a command `to_use`."""
    problems: tuple[Problem, ...]


def list_usable(listing: SkillListing) -> UsableSkills:
    """List a row per skill, with the reason if it cannot be used. No code of skills is executed."""
    places, damage = listing.places, listing.damage
    catalog = open_catalog(places)
    usable = {skill.canonical for skill in keep_active(catalog, listing.activation, places).skills}
    # Reversed, so that the first of several rows with the same name wins.
    packages = {str(row["name_canonical"]): row for row in reversed(_list_packages(listing))}
    statuses = {
        canonical_name(status.name): status for status in reversed(_build_statuses(_Scene(listing, ToolsetReading())))
    }
    rows: list[Row] = [
        _build_row(skill, packages.get(skill.canonical), skill.canonical in usable) for skill in catalog.skills
    ]
    known = {skill.canonical for skill in catalog.skills}
    rows += [{**row, "folder": row["path"], "active": False} for name, row in packages.items() if name not in known]
    lost: list[Row] = [
        {"name": status.name, "name_canonical": name, "source": status.source, "path": status.path, "active": False}
        for name, status in statuses.items()
        if name not in known and name not in packages
    ]
    rows = [
        # The registry of installed skills cannot be read, so nothing tells which of them are trusted.
        {**row, "active": False, "why": damage.message, "to_use": ""}
        if damage is not None and Path(str(row["path"])).is_relative_to(places.roots.home.root)
        else _explain(row, statuses.get(str(row["name_canonical"])), places)
        for row in (*rows, *lost)
    ]
    rows.sort(key=lambda row: (not row["active"], str(row["name_canonical"]), str(row["path"])))
    problems = [problem for problem in catalog.problems if problem.severity == "error" or problem.code in _TOLD]
    return UsableSkills(rows=tuple(rows), problems=(*((damage,) if damage is not None else ()), *problems))


def _build_row(skill: CatalogSkill, package: Row | None, is_active: bool) -> Row:
    return {
        **({**package, "folder": package["path"]} if package else {"name_canonical": skill.canonical}),
        "name": package["name"] if package else skill.name,
        "id": skill.id,
        "description": skill.description,
        "version": skill.version,
        "license": skill.license,
        "tags": skill.tags,
        "allowed_tools": skill.allowed_tools,
        "source": package["source"] if package and skill.source.kind == "user" else skill.source.kind,
        "path": skill.path,
        "problems": [problem_as_json(problem) for problem in skill.problems],
        "active": is_active,
    }


def _explain(row: Row, status: SkillStatus | None, places: SkillPlaces) -> Row:
    is_whole = row["active"] and not (status is not None and status.active and status.reason)
    why, command = ("", "") if is_whole else _get_reason(row, status, places)
    return {**row, "why": why, "to_use": command}


def _get_reason(row: Row, status: SkillStatus | None, places: SkillPlaces) -> tuple[str, str]:
    name = str(row["name_canonical"])
    if status is not None and status.reason:
        return f"cannot be loaded: {status.reason}", f"agent skills show {name}"
    if row["source"] in OPT_IN and not _is_enabled(name, places):
        return "not enabled", f"agent skills enable {name}"
    if status is not None and not status.trusted and row["source"] != "bundled":
        return status.note or "not trusted", f"agent skills trust {name}"
    return (status.note if status is not None else "") or "not active", ""


def _is_enabled(name: str, places: SkillPlaces) -> bool:
    selection = places.selection
    if isinstance(selection, str):
        return selection != "none"
    return name in {canonical_name(each) for each in selection}
