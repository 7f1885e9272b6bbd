"""What `agent skill list` and `agent skill info` know about the packages on this machine."""

from metier.cli.skill.view import render_origin, render_report, render_trust, safe
from metier.definitions.names import canonical_name, check_skill_id
from metier.definitions.skills.naming import hint_skill
from metier.definitions.skills.scripts import discover_scripts
from metier.errors import SkillError, SkillNotFound
from metier.skills.activation import OPT_IN, FoundSkills, Selection, SkillRoots, activate, find_package, find_packages
from metier.skills.capabilities_report import build_report
from metier.skills.install.placement import read_registry
from metier.skills.install.registry import RegistryEntry
from metier.skills.package import SkillPackage
from metier.skills.trust.digest import digest_tree
from metier.skills.trust.judgement import is_trusted


def get_package(roots: SkillRoots, name: str) -> SkillPackage:
    """The package of that name; an installed one before a bundled or workspace one."""
    check_skill_id(name)
    found = find_packages(roots)
    order = ("installed", "user", "bundled", "workspace", "directory")
    package = find_package(sorted(found.packages, key=lambda package: order.index(package.source)), name)
    if package is None:
        raise _not_found(found, name)
    return package


def get_winner(roots: SkillRoots, name: str) -> SkillPackage:
    """The skill of that name that a run would use: precedence decides, as in `agent check`."""
    check_skill_id(name)
    found = find_packages(roots)
    package = found.find(name)
    if package is None:
        raise _not_found(found, name)
    return package


def _not_found(found: FoundSkills, name: str) -> SkillError:
    broken = found.find_broken(name)
    if broken:
        return SkillError(f"Skill {name!r} cannot be loaded", hint=broken.reason.render())
    hint = hint_skill(name, [package.definition.name for package in found.packages]) or "See `agent skills list`"
    return SkillNotFound(f"No skill is called {name!r}", hint=hint)


def list_rows(roots: SkillRoots, selection: Selection) -> list[dict[str, object]]:
    """One row per package, sorted by canonical name."""
    found = find_packages(roots)
    active = {package.folder for package in activate(found, selection).packages}
    registry = read_registry(roots.home)
    rows = [
        _row(package, registry.find(package.definition.name), is_active=package.folder in active)
        for package in found.packages
        if package.source in OPT_IN
    ]
    shown = {row["name_canonical"] for row in rows}
    rows += [_lost_row(entry, found) for key, entry in registry.skills.items() if key not in shown]
    return sorted(rows, key=lambda row: (str(row["name_canonical"]), str(row["path"])))


def describe_package(package: SkillPackage, roots: SkillRoots) -> tuple[dict[str, object], list[str]]:
    """The same facts as JSON and as lines."""
    definition = package.definition
    entry = read_registry(roots.home).find(definition.name) if package.source in ("installed", "user") else None
    digest = digest_tree(package.folder)
    report = build_report(definition, digest)
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
        "report": report.model_dump(mode="json"),
    }
    facts = {
        "Version": definition.version,
        "Author": definition.author,
        "License": definition.license,
        "Source": package.source,
        "From": render_origin(entry),
        "Folder": str(package.folder),
        "Tree": digest.tree,
        "State": str(row["state"]),
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
