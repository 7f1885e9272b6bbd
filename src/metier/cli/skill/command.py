"""`agent skill …`: install, inspect, trust and remove skill packages."""

from pathlib import Path
from typing import Annotated

import anyio
import typer

from metier.cli.shared.context import current_workspace
from metier.cli.shared.output import write_json, write_line, write_text
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
from metier.cli.skill.status import describe_package, get_package, list_tool_names
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
    help="Install, inspect, trust, test and remove skill packages.",
)
attach_adding(app)
attach_indexes(app)
attach_test(app)


@app.command()
def update(
    name: Annotated[str | None, typer.Argument(help="The skill.")] = None,
    all_skills: Annotated[bool, typer.Option("--all", help="Update every installed skill.")] = False,
    yes: Yes = False,
    no_trust: NoTrust = False,
    max_files: MaxFiles = LIMITS.max_files,
    max_megabytes: MaxMegabytes = LIMITS.max_bytes // MEGABYTE,
    json: Json = False,
) -> None:
    """Fetch a skill again, show what changed, ask, and swap it in one step."""
    decision = Decision.of_flags(yes=yes, no_trust=no_trust)
    if (name is None) != all_skills:
        raise UsageError("Name one skill, or give --all")
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
    name: Annotated[str, typer.Argument(help="The skill.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    json: Json = False,
) -> None:
    """Delete an installed skill and forget it."""
    installer = open_installer()
    entry = get_entry(read_registry(installer.home), name)
    folder = installer.home.folder_of(entry)
    if not yes and not decide_interactively(f"Delete {folder}?", flag="--yes"):
        say("Nothing was changed")
        raise typer.Exit(1)
    installer.remove(name)
    say(f"Removed {entry.name}")
    if json:
        write_json({"status": "removed", "name": entry.name, "path": str(folder)})


@app.command("show", hidden=True)
@app.command()
def info(name: Annotated[str, typer.Argument(help="The skill.")], json: Json = False) -> None:
    """Show where a skill came from, whether it is trusted, and what it can do.

    The toolsets of a trusted skill are loaded, because only their code knows which tools they have.
    """
    places = open_places(None)
    package = get_package(places.roots, name)
    details, lines = describe_package(package, places.roots)
    tools = anyio.run(list_tool_names, package, places)
    details["tools"] = tools
    lines += [f"  Tools: {', '.join(tools)}"] if tools else []
    if json:
        write_json(details)
    else:
        for line in lines:
            write_line(line)


@app.command()
def trust(
    name: Annotated[str, typer.Argument(help="The skill.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Trust without asking.")] = False,
    json: Json = False,
) -> None:
    """Show what a skill can do and allow its code to run, as long as its bytes stay the same."""
    roots = open_places(None).roots
    package = get_package(roots, name)
    digest = digest_tree(package.folder)
    for line in render_report(build_report(package.definition, digest)):
        say(line)
    if not yes and not decide_interactively(f"Trust {package.definition.name}?", flag="--yes"):
        say("Nothing was changed")
        raise typer.Exit(1)
    entry = trust_package(roots.home, package, digest=digest, clock=SystemClock())
    say(f"Trusted {entry.name}, tree {digest.tree}")
    if json:
        write_json({"status": "trusted", "name": entry.name, "tree": digest.tree})


@app.command()
def untrust(name: Annotated[str, typer.Argument(help="The skill.")], json: Json = False) -> None:
    """Take trust back: the skill can be read, its code does not run."""
    roots = open_places(None).roots
    package = get_package(roots, name)
    untrust_package(roots.home, package)
    say(f"{package.definition.name} is no longer trusted")
    if json:
        write_json({"status": "untrusted", "name": package.definition.name})


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="The skill; all installed ones where it is left out.")] = None,
    json: Json = False,
) -> None:
    """Compare every byte of the installed skills with what was installed. Ends with 1 if something differs."""
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
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 1 if the file is not current.")
    ] = False,
    json: Json = False,
) -> None:
    """Write skills.lock: address, commit and hashes of every installed skill."""
    current = build_lock(read_registry(open_roots().home))
    if json:
        write_text(render_lock(current))
    if check:
        if load_lock(current_workspace()) != current:
            say(f"{FILE_NAME} is not current; write it again with `agent skill lock`")
            raise typer.Exit(1)
        return
    write_lock(current_workspace(), current)
    say(f"Wrote {FILE_NAME} with {len(current.skills)} skills")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The name: lower case, digits, hyphens.")],
    path: Annotated[Path, typer.Option(help="The folder in which the skill's folder is made.")] = Path(".agent/skills"),
    json: Json = False,
) -> None:
    """Write a new skill that passes `agent skills validate --strict`."""
    was_empty = next(list_brought(current_workspace()), None) is None
    folder = create_skill(path, name=name)
    if was_empty and folder.resolve().is_relative_to(current_workspace().resolve()):
        trust_new_folder(current_workspace())
    say(f"Wrote {folder}; start with {folder / 'SKILL.md'}")
    if json:
        write_json({"status": "created", "name": canonical_name(name), "path": str(folder)})
