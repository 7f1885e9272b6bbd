"""`agent skill …`: install, inspect, trust and remove skill packages."""

from pathlib import Path
from typing import Annotated

import anyio
import typer

from metier.cli.shared.context import current_workspace
from metier.cli.shared.output import count, write_json, write_line, write_text
from metier.cli.skill.add import (
    LIMITS,
    Json,
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
from metier.cli.skill.add import attach as attach_adding
from metier.cli.skill.add import attach_search as attach_indexes
from metier.cli.skill.decision import Decision, decide_interactively, say
from metier.cli.skill.skill_status import get_package
from metier.cli.skill.test import attach as attach_test
from metier.cli.skill.view import render_report, render_verification
from metier.cli.skill.workspace_skills import open_places
from metier.cli.trust import trust_new_folder
from metier.definitions.names import canonical_name
from metier.errors import UsageError
from metier.ids import SystemClock
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
from metier.skills.source import InstallSource
from metier.skills.trust.judgement import digest_tree
from metier.skills.trust.workspace_trust import list_brought

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Manage skill packages.",
)
attach_adding(app)
attach_indexes(app)
attach_test(app)


@app.command()
def update(
    name: Annotated[str | None, typer.Argument(help="Skill name.")] = None,
    all_skills: Annotated[bool, typer.Option("--all", help="Update all installed skills.")] = False,
    yes: Yes = False,
    no_trust: NoTrust = False,
    max_files: MaxFiles = LIMITS.max_files,
    max_megabytes: MaxMegabytes = LIMITS.max_bytes // MEGABYTE,
    json: Json = False,
) -> None:
    """Update an installed skill."""
    decision = Decision.of_flags(yes=yes, no_trust=no_trust)
    if (name is None) != all_skills:
        raise UsageError("Pass a skill name or --all")
    installer = open_installer(max_files, max_megabytes)
    registry = read_registry(installer.home)
    names = [name] if name else [key for key in sorted(registry.skills) if registry.skills[key].is_installed]
    outcomes: list[Outcome] = []
    for each in names:
        outcomes.append(anyio.run(_update, installer, each, decision, find_newer(registry.find(each), installer)))
        announce(outcomes[-1])
    finish(outcomes, is_json=json, is_list=all_skills)


async def _update(installer: Installer, name: str, decision: Decision, source: InstallSource | None) -> Outcome:
    return await installer.update(name, confirm=decision.answer, source=source)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Skill name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Remove an installed skill."""
    installer = open_installer()
    entry = get_entry(read_registry(installer.home), name)
    folder = installer.home.folder_of(entry)
    if not yes and not decide_interactively(f"Delete {folder}?", flag="--yes"):
        say("Nothing changed")
        raise typer.Exit(1)
    installer.remove(name)
    say(f"Removed {entry.name}")
    if json:
        write_json({"status": "removed", "name": entry.name, "path": str(folder)})


@app.command()
def trust(
    name: Annotated[str, typer.Argument(help="Skill name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Trust a skill's code."""
    roots = open_places(None).roots
    package = get_package(roots, name)
    digest = digest_tree(package.folder)
    for line in render_report(build_report(package.definition, digest)):
        say(line)
    if not yes and not decide_interactively(f"Trust {package.definition.name}?", flag="--yes"):
        say("Nothing changed")
        raise typer.Exit(1)
    entry = trust_package(roots.home, package, digest=digest, clock=SystemClock())
    say(f"Trusted {entry.name}, tree {digest.tree}")
    if json:
        write_json({"status": "trusted", "name": entry.name, "tree": digest.tree})


@app.command()
def untrust(name: Annotated[str, typer.Argument(help="Skill name.")], json: Json = False) -> None:
    """Revoke trust in a skill."""
    roots = open_places(None).roots
    package = get_package(roots, name)
    untrust_package(roots.home, package)
    say(f"{package.definition.name} is no longer trusted")
    if json:
        write_json({"status": "untrusted", "name": package.definition.name})


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="Skill name. Default: all installed skills.")] = None,
    json: Json = False,
) -> None:
    """Verify the files of installed skills.

    Exit code 1: a file differs.
    """
    home = open_roots().home
    registry = read_registry(home)
    entries = [get_entry(registry, name)] if name else [registry.skills[key] for key in sorted(registry.skills)]
    results = [verify_entry(entry, home) for entry in entries if entry.is_installed]
    if json:
        write_json([result.model_dump(mode="json") for result in results])
    else:
        for line in (line for result in results for line in render_verification(result)):
            write_line(line)
    if any(result.condition != "intact" for result in results):
        raise typer.Exit(1)


@app.command()
def lock(
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if the file is outdated; write nothing.")] = False,
    json: Json = False,
) -> None:
    """Write skills.lock."""
    current = build_lock(read_registry(open_roots().home))
    if json:
        write_text(render_lock(current))
    if check:
        if load_lock(current_workspace()) != current:
            say(f"{FILE_NAME} is outdated; update it with `agent skills lock`")
            raise typer.Exit(1)
        return
    write_lock(current_workspace(), current)
    say(f"Wrote {FILE_NAME} with {count(len(current.skills), 'skill')}")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Skill name: lowercase letters, digits, hyphens.")],
    path: Annotated[Path, typer.Option(help="Parent folder of the new skill.")] = Path(".agent/skills"),
    json: Json = False,
) -> None:
    """Create a new skill."""
    was_empty = next(list_brought(current_workspace()), None) is None
    folder = create_skill(path, name=name)
    if was_empty and folder.resolve().is_relative_to(current_workspace().resolve()):
        trust_new_folder(current_workspace())
    say(f"Wrote {folder}; edit {folder / 'SKILL.md'}")
    if json:
        write_json({"status": "created", "name": canonical_name(name), "path": str(folder)})
