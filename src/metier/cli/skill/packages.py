"""`agent skills update`, `remove`, `trust`, `untrust`, `verify`, `lock`, `create`, `enable` and `disable`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from metier.cli.config import Change, Mine, change_setting, report_change
from metier.cli.shared.command_options import AsJson
from metier.cli.shared.context import current_workspace, home_folder
from metier.cli.shared.output import warn_line, write_json, write_line, write_text
from metier.cli.skill.add import (
    LIMITS,
    MaxFiles,
    MaxMegabytes,
    NoTrust,
    Yes,
    announce,
    find_newer,
    finish,
    open_installer,
    open_roots,
)
from metier.cli.skill.decision import Decision, decide_interactively
from metier.cli.skill.skill_status import get_package
from metier.cli.skill.view import render_report, render_verification
from metier.cli.skill.workspace_skills import open_places
from metier.cli.trust import trust_new_folder
from metier.definitions.names import canonical_name
from metier.definitions.nearest import hint_nearest
from metier.errors import SkillNotFound, UsageError
from metier.ids import SystemClock
from metier.settings.keys import variables_of
from metier.settings.resolution import load_settings
from metier.skills.activation import OPT_IN, FoundSkills, Selection, get_packages, parse_selection
from metier.skills.capabilities_report import build_report
from metier.skills.install.lock import (
    FILE_NAME,
    build_lock,
    load_lock,
    render_lock,
    write_lock,
)
from metier.skills.install.operations import Installer, Outcome
from metier.skills.install.placement import read_registry
from metier.skills.install.review import get_entry, trust_package, untrust_package, verify_entry
from metier.skills.install.scaffold import create_skill
from metier.skills.layout import MEGABYTE
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import digest_tree, is_trusted
from metier.skills.source import InstallSource
from metier.skills.workspace_trust import list_agent_files
from metier.telemetry.amounts import format_count

KEY = "skills.enabled"

Names = Annotated[list[str], typer.Argument(help="Skill names.")]


def update(
    name: Annotated[str | None, typer.Argument(help="Skill name.")] = None,
    all_skills: Annotated[bool, typer.Option("--all", help="Update all installed skills.")] = False,
    yes: Yes = False,
    no_trust: NoTrust = False,
    max_files: MaxFiles = LIMITS.max_files,
    max_megabytes: MaxMegabytes = LIMITS.max_bytes // MEGABYTE,
    as_json: AsJson = False,
) -> None:
    """Update an installed skill."""
    decision = Decision.of_flags(yes=yes, no_trust=no_trust)
    if (name is None) != all_skills:
        raise UsageError("Pass either a skill name or --all", hint="Run `agent skills list` to list skills")
    installer = open_installer(max_files, max_megabytes)
    registry = read_registry(installer.home)
    names = [name] if name else [key for key in sorted(registry.skills) if registry.skills[key].is_installed]
    outcomes: list[Outcome] = []
    for each in names:
        outcomes.append(anyio.run(_update, installer, each, decision, find_newer(registry.find(each), installer)))
        announce(outcomes[-1])
    finish(outcomes, is_json=as_json, is_list=all_skills)


async def _update(installer: Installer, name: str, decision: Decision, source: InstallSource | None) -> Outcome:
    return await installer.update(name, confirm=decision.answer, source=source)


def remove(
    name: Annotated[str, typer.Argument(help="Skill name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove an installed skill."""
    installer = open_installer()
    entry = get_entry(read_registry(installer.home), name)
    folder = installer.home.folder_of(entry)
    if not yes and not decide_interactively(f"Delete {folder}?", flag="--yes"):
        warn_line("Nothing changed")
        raise typer.Exit(1)
    installer.remove(name)
    warn_line(f"Removed {entry.name}")
    if as_json:
        write_json({"status": "removed", "name": entry.name, "path": str(folder)})


def trust(
    name: Annotated[str, typer.Argument(help="Skill name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Trust a skill's code."""
    roots = open_places(None).roots
    package = get_package(roots, name)
    # Before the report: exactly the reviewed bytes are trusted, even if the files change while the user reads.
    digest = digest_tree(package.folder)
    for line in render_report(build_report(package.definition, digest)):
        warn_line(line)
    if not yes and not decide_interactively(f"Trust {package.definition.name}?", flag="--yes"):
        warn_line("Nothing changed")
        raise typer.Exit(1)
    entry = trust_package(roots.home, package, digest=digest, clock=SystemClock())
    warn_line(f"Trusted {entry.name}, tree {digest.tree}")
    if as_json:
        write_json({"status": "trusted", "name": entry.name, "tree": digest.tree})


def untrust(name: Annotated[str, typer.Argument(help="Skill name.")], as_json: AsJson = False) -> None:
    """Revoke trust in a skill."""
    roots = open_places(None).roots
    package = get_package(roots, name)
    untrust_package(roots.home, package)
    warn_line(f"{package.definition.name} is no longer trusted")
    if as_json:
        write_json({"status": "untrusted", "name": package.definition.name})


def verify(
    name: Annotated[str | None, typer.Argument(help="Skill name. Default: all installed skills.")] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the files of installed skills.

    Exit code 1: a file differs.
    """
    home = open_roots().home
    registry = read_registry(home)
    entries = [get_entry(registry, name)] if name else [registry.skills[key] for key in sorted(registry.skills)]
    results = [verify_entry(entry, home) for entry in entries if entry.is_installed]
    if as_json:
        write_json([result.model_dump(mode="json") for result in results])
    else:
        for line in (line for result in results for line in render_verification(result)):
            write_line(line)
    if any(result.condition != "intact" for result in results):
        raise typer.Exit(1)


def lock(
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if the file is outdated; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write skills.lock."""
    current = build_lock(read_registry(open_roots().home))
    if as_json:
        write_text(render_lock(current))
    if check:
        if load_lock(current_workspace()) != current:
            warn_line(f"{FILE_NAME} is outdated; update it with `agent skills lock`")
            raise typer.Exit(1)
        return
    write_lock(current_workspace(), current)
    warn_line(f"Wrote {FILE_NAME} with {format_count(len(current.skills), 'skill')}")


def create(
    name: Annotated[str, typer.Argument(help="Skill name: lowercase letters, digits, hyphens.")],
    path: Annotated[Path, typer.Option(help="Parent folder of the new skill.")] = Path(".agent/skills"),
    as_json: AsJson = False,
) -> None:
    """Create a new skill."""
    # Other files that address an agent may have come with a clone, and trust in the folder would include them.
    was_empty = next(list_agent_files(current_workspace()), None) is None
    folder = create_skill(path, name=name)
    if was_empty and folder.resolve().is_relative_to(current_workspace().resolve()):
        trust_new_folder(current_workspace())
    warn_line(f"Wrote {folder}; edit {folder / 'SKILL.md'}")
    if as_json:
        write_json({"status": "created", "name": canonical_name(name), "path": str(folder)})


def enable(names: Names, *, mine: Mine = False, as_json: AsJson = False) -> None:
    """Enable bundled or installed skills."""
    skills = get_packages(open_places(None).roots)
    found = [_get_package(name, skills) for name in names]
    own = [package for package in found if package.source not in OPT_IN]
    if own:
        name = own[0].definition.name
        raise UsageError(f"Skill {name!r} is a workspace skill", hint="Workspace skills are always enabled")
    selection = _read_enabled()
    if isinstance(selection, str) and selection != "none":
        raise UsageError(
            f"{KEY} is already {selection!r}", hint="All skills are enabled; run `agent skills list` to list them"
        )
    wanted = [canonical_name(package.definition.name) for package in found]
    change = _write_enabled((*(() if isinstance(selection, str) else selection), *wanted), mine=mine)
    report_change(change, as_json=as_json)
    for package in found:
        if not is_trusted(package):
            name = canonical_name(package.definition.name)
            warn_line(f"warning: {name} is not trusted and not used; to trust it, run `agent skills trust {name}`")


def disable(names: Names, *, mine: Mine = False, as_json: AsJson = False) -> None:
    """Disable skills."""
    skills = get_packages(open_places(None).roots)
    selection = _read_enabled()
    if isinstance(selection, str):
        # To disable one of `all`, the settings must list the others.
        packages = [package for package in skills.packages if package.source in OPT_IN]
        enabled = [] if selection == "none" else [canonical_name(package.definition.name) for package in packages]
    else:
        enabled = [canonical_name(name) for name in selection]
    dropped = [canonical_name(name) for name in names]
    for name in dropped:
        if name not in enabled:
            if name not in _list_names(skills):
                raise _not_found(name, skills)
            warn_line(f"{name} was not enabled")
    change = _write_enabled([name for name in enabled if name not in dropped], mine=mine)
    report_change(change, as_json=as_json)


def _read_enabled() -> Selection:
    """Return the selection of the settings file, without the environment's."""
    # The environment overrides the file, but only the file is about to be changed.
    without = {name: value for name, value in os.environ.items() if name not in variables_of(KEY)}
    loaded = load_settings(flags={}, environ=without, cwd=current_workspace(), home=home_folder(), config=None)
    enabled = loaded.settings.skills.enabled
    return parse_selection(enabled if isinstance(enabled, str) else ",".join(enabled))


def _write_enabled(names: Sequence[str], *, mine: bool) -> Change:
    listed = ",".join(dict.fromkeys(canonical_name(name) for name in names))
    return change_setting(KEY, listed or "none", mine=mine)


def _get_package(name: str, skills: FoundSkills) -> SkillPackage:
    package = skills.find(name)
    if package is None:
        raise _not_found(name, skills)
    return package


def _list_names(skills: FoundSkills) -> set[str]:
    return {canonical_name(package.definition.name) for package in skills.packages}


def _not_found(name: str, skills: FoundSkills) -> SkillNotFound:
    hint = (
        hint_nearest(canonical_name(name), _list_names(skills))
        or "Run `agent skills list` to list skills, or `agent skills add` to install one"
    )
    return SkillNotFound(f"No skill is called {name!r}", hint=hint)
