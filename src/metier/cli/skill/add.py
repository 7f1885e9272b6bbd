"""`agent skills add` and `agent skills search`: install one skill, some of a collection, or one that an index names."""

import importlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import typer
from msgspec import Struct, field

from metier.cli.shared.command_options import AsJson
from metier.cli.shared.context import current_settings, current_workspace, home_folder
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.decision import Decision, ask_at_terminal
from metier.cli.skill.view import safe
from metier.definitions.names import canonical_name, check_name
from metier.definitions.nearest import find_nearest
from metier.definitions.skills.sources import get_bundled_folder
from metier.errors import MetierError, UsageError
from metier.routing.ranking import build_index
from metier.routing.skill import RoutableSkill
from metier.runtime.opened_host import open_host
from metier.skills.activation import SkillRoots, build_roots, get_packages
from metier.skills.install.installed import RegistryEntry
from metier.skills.install.lock import FILE_NAME, LockedSkill, load_lock, parse_locked_source
from metier.skills.install.offers import CollectionFound, Offer, find_collection, pick_offers
from metier.skills.install.operations import Installer, Outcome, ServedSkill
from metier.skills.layout import MEGABYTE, InstallLimits
from metier.skills.needs import ABSENT, Lack, SkillNeeds, list_needs
from metier.skills.source import FolderSource, GitSource, InstallSource, McpSource, parse_source
from metier.skills.workspace_trust import get_trust
from metier.telemetry.excerpt import one_line

LIMITS = InstallLimits()


def open_roots() -> SkillRoots:
    home, workspace = home_folder(), current_workspace()
    trust = get_trust(workspace, home=home, environ=os.environ)
    return build_roots(home=home, workspace=workspace, bundled=get_bundled_folder(), trust=trust)


def open_installer(max_files: int = LIMITS.max_files, max_megabytes: int = LIMITS.max_bytes // MEGABYTE) -> Installer:
    roots = open_roots()
    size = max_megabytes * MEGABYTE
    limits = InstallLimits(max_files=max_files, max_bytes=size, max_file_bytes=min(size, LIMITS.max_file_bytes))
    bundled = [package for package in get_packages(roots).packages if package.source == "bundled"]
    taken = frozenset(canonical_name(package.definition.name) for package in bundled)
    return Installer(home=roots.home, limits=limits, taken=taken, fetch_served=_fetch_served)


async def _fetch_served(source: McpSource) -> ServedSkill:
    """Fetch a skill from an MCP server of this workspace, which is started only for that."""
    place = open_host(current_workspace(), environ=os.environ, home=home_folder(), config=None).host
    # Imported late: this takes 0.15 s of CPU time, and most skills come from git or a folder.
    fetched: ServedSkill = await importlib.import_module("metier.runtime.skill_updates").fetch_served(place, source)
    return fetched


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SEARCH_WIDTH = 100
_SETTING = "Set skills.indexes in agent.yaml to a file, folder or git repository that lists skills"


def search_indexes(words: str, installer: Installer, *, count: int) -> list[Offer]:
    """Rank the skills of the indexes for a request, like the skills of a workspace."""
    offers = dict(enumerate(_list_all(installer)))
    routable = [
        RoutableSkill(id=str(number), name=offer.name, description=offer.description)
        for number, offer in offers.items()
    ]
    ranked = build_index(routable).rank(words, count)
    return [offers[int(each.skill_id)] for each in ranked if each.matched or each.named]


def find_indexed(name: str, installer: Installer) -> Offer | None:
    """Find a skill by name in the first index that has it; None if the text is an address or a folder.

    Raises `UsageError` for a name that no index has.
    """
    if not _NAME.fullmatch(name) or Path(name).is_dir() or not _list_addresses():
        return None
    offers = list(_list_all(installer))
    found = next((offer for offer in offers if canonical_name(offer.name) == canonical_name(name)), None)
    if found is None:
        nearest = find_nearest(name, [offer.name for offer in offers])
        hint = f"Did you mean {nearest!r}?" if nearest else "Run `agent skills search WORDS` to search the indexes"
        raise UsageError(f"No folder or index has a skill {name!r}", hint=hint)
    return found


def find_newer(entry: RegistryEntry | None, installer: Installer) -> InstallSource | None:
    """Find the commit of an index for a skill that was installed at a commit; branches and tags update themselves."""
    if entry is None or entry.git_url is None or entry.branch or entry.tag:
        return None
    sources = (offer.source for offer in _list_all(installer))
    own = (each for each in sources if isinstance(each, GitSource) and each.url == entry.git_url)
    return next((each for each in own if each.subdir == entry.subdir), None)


def search(
    words: Annotated[list[str], typer.Argument(help="Search terms.")],
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="Maximum number of skills.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Search skill indexes."""
    if not _list_addresses():
        raise UsageError("No skill index configured", hint=_SETTING)
    found = search_indexes(" ".join(words), open_installer(), count=count)
    if as_json:
        write_json([_as_json(offer) for offer in found])
        return
    width = max((len(offer.name) for offer in found), default=0)
    for offer in found:
        write_line(f"{offer.name:<{width}}  {one_line(offer.description, _SEARCH_WIDTH)}")
    if not found:
        warn_line("No matching skills in the indexes")


def _list_addresses() -> Sequence[str]:
    return current_settings(None, {}).settings.skills.indexes


def _list_all(installer: Installer) -> Iterator[Offer]:
    """List the skills of all indexes. Report and skip indexes and entries that cannot be used."""
    for address in _list_addresses():
        try:
            reading = anyio.run(installer.read_index, parse_source(address, allow_file=True))
        except MetierError as error:
            warn_line(f"Index {address!r}: {error.sentence}")
            continue
        for problem in reading.problems:
            warn_line(safe(f"Index {address!r}: {problem}"))
        yield from reading.offers


def _as_json(offer: Offer) -> dict[str, object]:
    return {"name": offer.name, "description": offer.description, "source": offer.source.describe()}


Yes = Annotated[bool, typer.Option("--yes", "--trust", "--trusted", "-y", help="Install and trust without asking.")]
NoTrust = Annotated[bool, typer.Option("--no-trust", help="Install without asking and without trusting.")]
AllowFile = Annotated[bool, typer.Option("--allow-file", help="Allow file:// URLs.")]
MaxFiles = Annotated[int, typer.Option(min=1, help="Maximum number of files.")]
MaxMegabytes = Annotated[int, typer.Option(min=1, help="Maximum size in megabytes.")]

_WIDTH = 90


class _Wanted(NamedTuple):
    source: InstallSource
    name: str | None = None
    locked: LockedSkill | None = None


def add(
    source: Annotated[
        str | None,
        typer.Argument(help="<git-url|path>[@ref][#subdir], mcp:SERVER/SKILL, or a name from an index."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Install under another name.")] = None,
    yes: Yes = False,
    no_trust: NoTrust = False,
    every: Annotated[bool, typer.Option("--all", help="Install all skills of a collection.")] = False,
    pick: Annotated[str | None, typer.Option(help="Comma-separated skills of a collection to install.")] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="Install exactly the versions in skills.lock.")] = False,
    allow_file: AllowFile = False,
    max_files: MaxFiles = LIMITS.max_files,
    max_megabytes: MaxMegabytes = LIMITS.max_bytes // MEGABYTE,
    as_json: AsJson = False,
) -> None:
    """Install a skill."""
    _check_options(source, name=name, every=every, pick=pick, frozen=frozen)
    adding = _Adding(open_installer(max_files, max_megabytes), Decision.of_flags(yes=yes, no_trust=no_trust))
    if frozen:
        adding.add_all(_frozen_plan(source, name=name, allow_file=allow_file))
    elif source is not None:
        indexed = find_indexed(source, adding.installer)
        where = indexed.source if indexed is not None else parse_source(source, allow_file=allow_file)
        if every or pick is not None:
            offers = anyio.run(adding.installer.list_offers, where)
            adding.add_offers(offers if pick is None else pick_offers(offers, pick.split(",")))
        else:
            adding.add_found(_Wanted(where, name))
        adding.add_needed()
    finish(adding.outcomes, is_json=as_json, is_list=frozen or len(adding.outcomes) != 1 or every or pick is not None)


def _check_options(source: str | None, *, name: str | None, every: bool, pick: str | None, frozen: bool) -> None:
    if name is not None:
        check_name(name)
    if source is None and not frozen:
        raise UsageError("No source given", hint="Pass a git URL, a folder or a name from an index")
    named = [flag for flag, is_given in (("--all", every), ("--pick", pick), ("--name", name)) if is_given]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} are mutually exclusive", hint="Use one of them")


class _Adding(Struct, frozen=True):
    """One call of the command: the skills added so far, and the decisions that apply to all of them."""

    installer: Installer
    decision: Decision
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    def add_all(self, plan: Iterable[_Wanted]) -> None:
        for wanted in plan:
            outcome = anyio.run(_add, self.installer, wanted, self.decision)
            self.outcomes.append(outcome)
            announce(outcome)

    def add_offers(self, offers: Iterable[Offer]) -> None:
        self.add_all(_Wanted(offer.source) for offer in offers)

    def add_found(self, wanted: _Wanted) -> None:
        """Add the source's only skill, or those that the user chooses."""
        try:
            self.add_all([wanted])
        except CollectionFound as collection:
            if len(collection.offers) == 1:
                self.add_all([wanted._replace(source=collection.offers[0].source)])
            else:
                self.add_offers(_choose(collection))

    def add_needed(self) -> None:
        """Add missing dependencies of the added skills from the same collection, recursively."""
        offered: set[str] = set()
        while missing := self._list_missing(offered):
            # Offer each name only once: dependencies can be circular, and the user can decline one.
            offered |= {canonical_name(lack.name) for lack, _ in missing}
            for lack, outcome in missing:
                self._offer_needed(lack, outcome)

    def _list_missing(self, offered: set[str]) -> list[tuple[Lack, Outcome]]:
        # Each workspace enables skills for itself, so trusted ones count as enabled here.
        needs = SkillNeeds(lambda: get_packages(open_roots()), "all")
        added = [outcome for outcome in self.outcomes if outcome.status != "declined"]
        named = [(name, outcome) for outcome in added for name in list_needs(outcome.proposal.definition)]
        found = {canonical_name(name): (name, outcome) for name, outcome in named}
        lacks = [(needs.find_lack(name), outcome) for key, (name, outcome) in found.items() if key not in offered]
        return [(lack, outcome) for lack, outcome in lacks if lack is not None]

    def _offer_needed(self, lack: Lack, outcome: Outcome) -> None:
        needing = f"{outcome.proposal.name} names the skill {lack.name!r}, which {lack.reason}"
        if lack.reason != ABSENT:
            warn_line(f"{needing}. {lack.hint}")
            return
        offer = _find_neighbour(self.installer, outcome, lack.name)
        if offer is None:
            warn_line(f"{needing}; add it too, or the skill cannot be used")
            return
        warn_line(f"{needing}; the same collection has it")
        self.add_offers([offer])


def _find_neighbour(installer: Installer, outcome: Outcome, name: str) -> Offer | None:
    collection = find_collection(outcome.proposal.source)
    if collection is None:
        return None
    try:
        offers = anyio.run(installer.list_offers, collection)
    # The skill is installed already. The caller reports what it needs, with or without the collection.
    except MetierError:
        return None
    return next((offer for offer in offers if canonical_name(offer.name) == canonical_name(name)), None)


def _choose(collection: CollectionFound) -> Sequence[Offer]:
    """Let the user choose by number or name; other words filter the list."""
    shown = list(collection.offers)
    for line in _list_lines(shown):
        warn_line(line)
    while True:
        reply = ask_at_terminal("Choose skills (comma-separated numbers or names, search words, or `all`): ")
        if reply is None:
            # Without a terminal: its hint lists the skills and the options that choose.
            raise collection
        if not reply:
            raise UsageError("Nothing selected", hint=collection.hint)
        if reply == "all":
            return shown
        picked = _read_choice(reply, shown)
        if picked:
            return picked
        words = reply.split()
        found = [offer for offer in collection.offers if all(word in _searched(offer) for word in words)]
        warn_line("" if found else f"No skill matches {reply!r}")
        shown = found or list(collection.offers)
        for line in _list_lines(shown):
            warn_line(line)


def _read_choice(reply: str, shown: Sequence[Offer]) -> list[Offer]:
    """Parse a choice of numbers and names; None if one of them is neither."""
    by_name = {canonical_name(offer.name): offer for offer in shown}
    by_number = {str(number): offer for number, offer in enumerate(shown, start=1)}
    parts = [part for part in reply.replace(",", " ").split() if part]
    found = [by_number.get(part) or by_name.get(canonical_name(part)) for part in parts]
    return [offer for offer in found if offer is not None] if all(found) else []


def _list_lines(offers: Sequence[Offer]) -> list[str]:
    width = max((len(offer.name) for offer in offers), default=0)
    return [
        f"{number:>4}  {offer.name:<{width}}  {one_line(offer.description, _WIDTH)}".rstrip()
        for number, offer in enumerate(offers, start=1)
    ]


def _searched(offer: Offer) -> str:
    return f"{offer.name} {offer.description}".lower()


async def _add(installer: Installer, wanted: _Wanted, decision: Decision) -> Outcome:
    return await installer.add(wanted.source, confirm=decision.answer, name=wanted.name, locked=wanted.locked)


def _frozen_plan(source: str | None, *, name: str | None, allow_file: bool) -> list[_Wanted]:
    """Plan the installation from the lock: everything, one skill by name or address, or a folder checked against it."""
    locked = {canonical_name(skill.name): skill for skill in load_lock(current_workspace()).skills}
    if source is None:
        return [
            _Wanted(parse_locked_source(skill, allow_file=allow_file), skill.name, skill) for skill in locked.values()
        ]
    by_name = locked.get(canonical_name(name or source))
    where = None if by_name and name is None else parse_source(source, allow_file=allow_file)
    # A local copy has another address than the lock, so its entry is found by name. The installer compares its files.
    if isinstance(where, FolderSource):
        by_name = locked.get(canonical_name(name or where.path.resolve().name))
        if by_name:
            return [_Wanted(where, by_name.name, by_name)]
    elif isinstance(where, McpSource):
        by_name = by_name or next((skill for skill in locked.values() if skill.url == where.describe()), None)
    elif by_name is None and where is not None:
        by_name = next(
            (skill for skill in locked.values() if skill.url == where.url and skill.subdir == where.subdir), None
        )
    if by_name is None:
        raise UsageError(f"{FILE_NAME} has no skill {source!r}", hint="It has: " + (", ".join(locked) or "none"))
    return [_Wanted(parse_locked_source(by_name, allow_file=allow_file), by_name.name, by_name)]


def announce(outcome: Outcome) -> None:
    name, entry = outcome.proposal.name, outcome.entry
    match outcome.status:
        case "declined":
            warn_line("Nothing changed")
        case "unchanged":
            warn_line(f"{name} is up to date")
        case "installed" | "updated":
            trust_word = "trusted" if entry and entry.trusted else "not trusted"
            warn_line(f"{outcome.status.capitalize()} {name}, {trust_word}")
            if not (entry and entry.trusted):
                warn_line(f"To trust it: agent skills trust {canonical_name(name)}")
            warn_line(f"To enable: export AGENT_SKILLS={canonical_name(name)}")
            warn_line(f"Or in the settings: agent skills enable {canonical_name(name)}")


def finish(outcomes: list[Outcome], *, is_json: bool, is_list: bool) -> None:
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
