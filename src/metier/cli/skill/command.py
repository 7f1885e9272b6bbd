"""`agent skill …`: install, inspect, trust and remove skill packages."""

import os
from pathlib import Path
from typing import Annotated

import anyio
import typer

from metier.cli.shared.context import current_directory, home_folder
from metier.cli.shared.output import write_json, write_line, write_text
from metier.cli.skill.catalog import open_places
from metier.cli.skill.decision import Decision, decide_interactively, say
from metier.cli.skill.listing import describe_package, get_package
from metier.cli.skill.test import attach
from metier.cli.skill.view import render_report, render_verification
from metier.cli.trust import trust_new_folder
from metier.definitions.names import canonical_name, check_name
from metier.definitions.skills.sources import find_bundled_folder
from metier.errors import UsageError
from metier.ids import SystemClock
from metier.skills.activation import SkillRoots, build_roots, find_packages
from metier.skills.capabilities_report import build_report
from metier.skills.install.lock import (
    FILE_NAME,
    LockedSkill,
    build_lock,
    load_lock,
    parse_locked_source,
    render_lock,
    write_lock,
)
from metier.skills.install.operations import Installer, Outcome
from metier.skills.install.placement import read_registry
from metier.skills.install.review import get_entry, trust_package, untrust_package, verify_entry
from metier.skills.install.scaffold import create_skill
from metier.skills.limits import MEGABYTE, InstallLimits
from metier.skills.source import FolderSource, InstallSource, parse_source
from metier.skills.trust.digest import digest_tree
from metier.skills.trust.workspace_trust import find_trust, list_brought

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Install, inspect, trust, test and remove skill packages.",
)
attach(app)

Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "--trust", "-y", help="Install and trust without asking.")]
NoTrust = Annotated[bool, typer.Option("--no-trust", help="Install without asking and without trusting.")]
AllowFile = Annotated[bool, typer.Option("--allow-file", help="Allow file:// addresses.")]
MaxFiles = Annotated[int, typer.Option(min=1, help="Refuse a skill with more files than this.")]
MaxMegabytes = Annotated[int, typer.Option(min=1, help="Refuse a skill that is larger than this.")]
_LIMITS = InstallLimits()


@app.command()
def add(
    source: Annotated[
        str | None, typer.Argument(help="Git address or folder: <git-url|path>[@ref][#subdir]; with --frozen a name.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Install under this name instead of the skill's own.")] = None,
    yes: Yes = False,
    no_trust: NoTrust = False,
    every: Annotated[bool, typer.Option("--all", help="Install every skill of a collection.")] = False,
    frozen: Annotated[bool, typer.Option("--frozen", help="Install exactly what skills.lock says.")] = False,
    allow_file: AllowFile = False,
    max_files: MaxFiles = _LIMITS.max_files,
    max_megabytes: MaxMegabytes = _LIMITS.max_bytes // MEGABYTE,
    json: Json = False,
) -> None:
    """Fetch a skill, show what it can do, ask, and install it."""
    decision = Decision.of_flags(yes=yes, no_trust=no_trust)
    if name is not None:
        check_name(name)
    installer = _installer(max_files, max_megabytes)
    if frozen:
        plan = _frozen_plan(source, name=name, allow_file=allow_file)
    elif source is None:
        raise UsageError("The source is missing", hint="Give a git address or a folder")
    elif every and name is not None:
        raise UsageError("--all and --name exclude each other", hint="Leave out one of them")
    else:
        where = parse_source(source, allow_file=allow_file)
        sources = anyio.run(installer.list_sources, where) if every else (where,)
        plan = [(each, name, None) for each in sources]
    outcomes: list[Outcome] = []
    for where, wanted, locked in plan:
        outcomes.append(anyio.run(_add, installer, where, wanted, locked, decision))
        _announce(outcomes[-1])
    _finish(outcomes, is_json=json, is_list=frozen or every)


async def _add(
    installer: Installer, source: InstallSource, name: str | None, locked: LockedSkill | None, decision: Decision
) -> Outcome:
    return await installer.add(source, confirm=decision.answer, name=name, locked=locked)


@app.command()
def update(
    name: Annotated[str | None, typer.Argument(help="The skill.")] = None,
    all_skills: Annotated[bool, typer.Option("--all", help="Update every installed skill.")] = False,
    yes: Yes = False,
    no_trust: NoTrust = False,
    max_files: MaxFiles = _LIMITS.max_files,
    max_megabytes: MaxMegabytes = _LIMITS.max_bytes // MEGABYTE,
    json: Json = False,
) -> None:
    """Fetch a skill again, show what changed, ask, and swap it in one step."""
    decision = Decision.of_flags(yes=yes, no_trust=no_trust)
    if (name is None) != all_skills:
        raise UsageError("Name one skill, or give --all")
    installer = _installer(max_files, max_megabytes)
    registry = read_registry(installer.home)
    names = [name] if name else [key for key in sorted(registry.skills) if registry.skills[key].is_installed]
    outcomes: list[Outcome] = []
    for each in names:
        outcomes.append(anyio.run(_update, installer, each, decision))
        _announce(outcomes[-1])
    _finish(outcomes, is_json=json, is_list=all_skills)


async def _update(installer: Installer, name: str, decision: Decision) -> Outcome:
    return await installer.update(name, confirm=decision.answer)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The skill.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    json: Json = False,
) -> None:
    """Delete an installed skill and forget it."""
    installer = _installer()
    entry = get_entry(read_registry(installer.home), name)
    folder = installer.home.folder_of(entry)
    if not yes and not decide_interactively(f"Delete {folder}?", flag="--yes"):
        say("Nothing was changed")
        raise typer.Exit(1)
    installer.remove(name)
    say(f"Removed {entry.name}")
    if json:
        write_json({"status": "removed", "name": entry.name, "path": str(folder)})


@app.command()
def info(name: Annotated[str, typer.Argument(help="The skill.")], json: Json = False) -> None:
    """Show where a skill came from, whether it is trusted, and what it can do."""
    roots = open_places(None).roots
    details, lines = describe_package(get_package(roots, name), roots)
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
    home = _roots().home
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
    current = build_lock(read_registry(_roots().home))
    if json:
        write_text(render_lock(current))
    if check:
        if load_lock(current_directory()) != current:
            say(f"{FILE_NAME} is not current; write it again with `agent skill lock`")
            raise typer.Exit(1)
        return
    write_lock(current_directory(), current)
    say(f"Wrote {FILE_NAME} with {len(current.skills)} skills")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The name: lower case, digits, hyphens.")],
    path: Annotated[Path, typer.Option(help="The folder in which the skill's folder is made.")] = Path(".agent/skills"),
    json: Json = False,
) -> None:
    """Write a new skill that passes `agent skills validate --strict`."""
    was_empty = next(list_brought(current_directory()), None) is None
    folder = create_skill(path, name=name)
    if was_empty and folder.resolve().is_relative_to(current_directory().resolve()):
        trust_new_folder(current_directory())
    say(f"Wrote {folder}; start with {folder / 'SKILL.md'}")
    if json:
        write_json({"status": "created", "name": canonical_name(name), "path": str(folder)})


def _roots() -> SkillRoots:
    home, workspace = home_folder(), current_directory()
    trust = find_trust(workspace, home=home, environ=os.environ)
    return build_roots(home=home, workspace=workspace, bundled=find_bundled_folder(), trust=trust)


def _installer(max_files: int = _LIMITS.max_files, max_megabytes: int = _LIMITS.max_bytes // MEGABYTE) -> Installer:
    roots = _roots()
    size = max_megabytes * MEGABYTE
    limits = InstallLimits(max_files=max_files, max_bytes=size, max_file_bytes=min(size, _LIMITS.max_file_bytes))
    bundled = [package for package in find_packages(roots).packages if package.source == "bundled"]
    taken = frozenset(canonical_name(package.definition.name) for package in bundled)
    return Installer(home=roots.home, limits=limits, taken=taken)


def _frozen_plan(
    source: str | None, *, name: str | None, allow_file: bool
) -> list[tuple[InstallSource, str | None, LockedSkill | None]]:
    """What to install from the lock: all of it, one skill by name or address, or a local folder against its entry."""
    locked = {canonical_name(skill.name): skill for skill in load_lock(current_directory()).skills}
    if source is None:
        return [(parse_locked_source(skill, allow_file=allow_file), skill.name, skill) for skill in locked.values()]
    by_name = locked.get(canonical_name(name or source))
    where = None if by_name and name is None else parse_source(source, allow_file=allow_file)
    if isinstance(where, FolderSource):
        by_name = locked.get(canonical_name(name or where.path.resolve().name))
        if by_name:
            return [(where, by_name.name, by_name)]
    elif by_name is None and where is not None:
        by_name = next(
            (skill for skill in locked.values() if skill.url == where.url and skill.subdir == where.subdir), None
        )
    if by_name is None:
        raise UsageError(f"{FILE_NAME} has no skill {source!r}", hint="It has: " + (", ".join(locked) or "none"))
    return [(parse_locked_source(by_name, allow_file=allow_file), by_name.name, by_name)]


def _announce(outcome: Outcome) -> None:
    name, entry = outcome.proposal.name, outcome.entry
    match outcome.status:
        case "declined":
            say("Nothing was changed")
        case "unchanged":
            say(f"{name} is up to date")
        case "installed" | "updated":
            trust_word = "trusted" if entry and entry.trusted else "not trusted"
            say(f"{outcome.status.capitalize()} {name}, {trust_word}")
            if not (entry and entry.trusted):
                say(f"To trust it: agent skill trust {canonical_name(name)}")
            say(f"To enable: export AGENT_SKILLS={canonical_name(name)}")
            say(f"Or in the settings that hold here: agent skills enable {canonical_name(name)}")


def _finish(outcomes: list[Outcome], *, is_json: bool, is_list: bool) -> None:
    if is_json:
        rows = [_outcome_json(outcome) for outcome in outcomes]
        write_json(rows if is_list else rows[0])
    if any(outcome.status == "declined" for outcome in outcomes):
        raise typer.Exit(1)


def _outcome_json(outcome: Outcome) -> dict[str, object]:
    proposal, entry = outcome.proposal, outcome.entry
    return {
        "status": outcome.status,
        "name": proposal.name,
        "source": proposal.source.describe(),
        "commit": proposal.ref.commit if proposal.ref else None,
        "previous_commit": proposal.previous.commit_sha if proposal.previous else None,
        "tree": proposal.digest.tree,
        "path": entry.installed_path if entry else None,
        "trusted": entry.trusted if entry else False,
        "report": proposal.report.model_dump(mode="json"),
        "diff": proposal.diff.model_dump(mode="json") if proposal.diff else None,
        "local_changes": list(proposal.local_changes),
        "warnings": list(proposal.warnings),
        "problems": [problem.render() for problem in proposal.problems],
    }
