"""Adds, updates and removes skills. Everything is fetched, validated and reviewed first, then changed in one step.

`Confirm` returns the user's decision; this module doesn't ask, print or trust on its own.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from metier.definitions.names import canonical_name, check_name
from metier.definitions.problems import Problem
from metier.definitions.skills.scripts import report_missing_scripts
from metier.definitions.skills.skill import SkillDefinition, find_version_problem, load_skill
from metier.definitions.skills.skill_rules import NAME_NOT_USED
from metier.errors import ConfigError, InvalidName, SkillError, SkillNotFound, SkillRejected, UsageError
from metier.ids import Clock, SystemClock
from metier.skills.capabilities_report import (
    CapabilityDiff,
    CapabilityReport,
    build_report,
    diff_files,
    diff_reports,
)
from metier.skills.git_fetch import RemoteRef, Sleep, fetch_source, write_files
from metier.skills.install.installed import Registry, RegistryEntry, SkillHome, save_registry
from metier.skills.install.lock import LockedSkill, check_locked
from metier.skills.install.offers import FILE_NAME as INDEX_FILE
from metier.skills.install.offers import CollectionFound, IndexReading, Offer, list_offers, read_index
from metier.skills.install.placement import (
    check_free_disk,
    copy_folder,
    displace,
    open_registry,
    open_staging,
    place,
    read_registry,
    sync_tree,
)
from metier.skills.layout import InstallLimits, check_paths
from metier.skills.skill_trust import TreeDigest, digest_tree
from metier.skills.source import FolderSource, GitSource, InstallSource, McpSource, parse_source

type Answer = Literal["trust", "keep_untrusted", "stop"]
type Status = Literal["installed", "updated", "unchanged", "declined"]


class ServedSkill(Struct, frozen=True, kw_only=True):
    """A verified skill from an MCP server."""

    uri: str
    """Address of its `SKILL.md`. Together with the server's name it identifies the skill."""
    files: Mapping[str, bytes]


class Proposal(Struct, frozen=True, kw_only=True):
    """A staged skill for review. Nothing has been changed yet."""

    name: str
    source: InstallSource
    ref: RemoteRef | None
    """None for a local folder."""
    definition: SkillDefinition
    digest: TreeDigest
    report: CapabilityReport
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    previous: RegistryEntry | None = None
    diff: CapabilityDiff | None = None
    """Differences from the installed version."""
    local_changes: tuple[str, ...] = ()
    """Files changed since the installation; an update discards these changes."""


type Confirm = Callable[[Proposal], Answer]
type FetchServed = Callable[[McpSource], Awaitable[ServedSkill]]
"""Fetches a skill from a server, and verifies every byte by its manifest. Raises `SkillError`."""


class Outcome(Struct, frozen=True, kw_only=True):
    status: Status
    proposal: Proposal
    entry: RegistryEntry | None
    """The current registry entry."""


class Installer(Struct, frozen=True, kw_only=True):
    """Installs skills in a home, within limits."""

    home: SkillHome
    limits: InstallLimits = field(default_factory=InstallLimits)
    clock: Clock = field(default_factory=SystemClock)
    sleep: Sleep = anyio.sleep
    fetch_served: FetchServed | None = None
    """Fetches skills of MCP servers. None if no server is available."""
    taken: frozenset[str] = frozenset()
    """Canonical names of bundled skills, which a package must not use."""

    async def add(
        self, source: InstallSource, *, confirm: Confirm, name: str | None = None, locked: LockedSkill | None = None
    ) -> Outcome:
        """Install a skill. With `locked`, its bytes must be exactly the locked ones.

        Raises `SkillRejected` for content that is not allowed, `SkillError` if it cannot be installed, `UsageError` for
        a name that is already used.
        """
        with open_registry(self.home):
            pass  # Cleans up after killed processes, whose files would otherwise reduce the free space checked below.
        with open_staging(self.home) as folder:
            proposal = await self._propose(source, folder, name=name)
            if locked is not None:
                check_locked(locked, proposal.digest)
            previous = read_registry(self.home).find(proposal.name)
            if previous is not None and self._is_in_place(previous, proposal):
                return self._reuse_installed(proposal, previous, confirm)
            # With a lock, the locked version replaces an installed one of the same name.
            if locked is None or previous is None:
                self._check_free(proposal.name, previous)
            return self._finish(proposal, previous, confirm(proposal))

    async def list_offers(self, source: InstallSource) -> tuple[Offer, ...]:
        """Return the skills of a collection, or the single skill of a source. Raises `UsageError` if there is none."""
        with open_staging(self.home) as folder:
            tree = folder / "tree" / _folder_name(source)
            tree.mkdir(parents=True)
            await self._stage(source, tree, repository=folder / "repository")
            single = load_skill(tree, own=True).skill
            if single is not None:
                return (Offer(name=single.name, description=single.description, folder="", source=source),)
            offers = list_offers(tree, source)
        if not offers:
            raise UsageError(f"{source.describe()!r} contains no skill", hint="Give a folder with skills")
        return offers

    async def read_index(self, source: InstallSource) -> IndexReading:
        """Return the skills of an index file, or of a folder or repository with or without an index."""
        if isinstance(source, FolderSource) and source.path.is_file():
            return read_index(source.path, allow_file=True)
        with open_staging(self.home) as folder:
            tree = folder / "tree" / _folder_name(source)
            tree.mkdir(parents=True)
            ref = await self._stage(source, tree, repository=folder / "repository")
            if (tree / INDEX_FILE).is_file():
                return read_index(tree / INDEX_FILE, allow_file=ref is None)
            pinned = (
                dataclasses.replace(source, ref=ref.commit)
                if isinstance(source, GitSource) and ref is not None
                else source
            )
            return IndexReading(list_offers(tree, pinned))

    async def update(self, name: str, *, confirm: Confirm, source: InstallSource | None = None) -> Outcome:
        """Fetch the skill again from its source and replace it in one step. After a failure the old version stays.

        `source` overrides the recorded source, for example with the current commit of an index.
        """
        with open_registry(self.home) as registry:
            previous = registry.find(name)
        if previous is None or not previous.is_installed:
            raise SkillNotFound(
                f"No skill {name!r} was installed by `agent skills add`", hint="Run `agent skills list` to list skills"
            )
        source = source or source_of(previous)
        with open_staging(self.home) as folder:
            fresh = await self._propose(source, folder, name=previous.name)
            proposal = self._compare(fresh, previous)
            if proposal.digest.tree == previous.tree and not proposal.local_changes:
                return Outcome(status="unchanged", proposal=proposal, entry=self._update_pin(previous, proposal))
            return self._finish(proposal, previous, confirm(proposal))

    def remove(self, name: str) -> RegistryEntry:
        """Remove the skill from the registry and from disk in one step."""
        with open_registry(self.home) as registry:
            entry = registry.find(name)
            if entry is None or not entry.is_installed:
                raise SkillNotFound(
                    f"No skill {name!r} was installed by `agent skills add`",
                    hint="Run `agent skills list` to list skills",
                )
            displace(self.home, registry, entry.name_canonical)
        return entry

    async def _propose(self, source: InstallSource, folder: Path, *, name: str | None) -> Proposal:
        """Fetch and validate a skill. It is staged in a folder with the name that its author gave it."""
        tree = folder / "tree" / _folder_name(source)
        tree.mkdir(parents=True)
        ref = await self._stage(source, tree, repository=folder / "repository")
        await anyio.to_thread.run_sync(sync_tree, tree)
        reading = load_skill(tree, own=True)
        # `_folder_name` chose the folder's name, so a difference says nothing about the skill.
        problems = tuple(_relative(problem, tree) for problem in reading.problems if problem.code != "name_folder")
        if reading.skill is None:
            if not (tree / "SKILL.md").exists() and (offers := list_offers(tree, source)):
                raise CollectionFound(source, offers)
            raise ConfigError(f"{source.describe()!r} holds no usable skill", problems=problems)
        shown = name or reading.skill.name
        _check_installable_name(shown, () if name else problems)
        if fault := find_version_problem(reading.skill):
            raise SkillRejected(fault.message)
        digest = digest_tree(tree)
        low_disk = check_free_disk(self.home, digest.bytes, limits=self.limits)
        report = build_report(reading.skill, digest)
        return Proposal(
            name=shown,
            source=source,
            ref=ref,
            definition=reading.skill,
            digest=digest,
            report=report,
            problems=(*problems, *(_relative(each, tree) for each in report_missing_scripts(reading.skill))),
            warnings=tuple(filter(None, (low_disk, _transport_warning(source)))),
        )

    async def _stage(self, source: InstallSource, tree: Path, *, repository: Path) -> RemoteRef | None:
        match source:
            case GitSource():
                fetched = await fetch_source(source, repository, limits=self.limits, sleep=self.sleep)
                check_free_disk(self.home, sum(file.size for file in fetched.files), limits=self.limits)
                await write_files(fetched, tree)
                return fetched.ref
            case McpSource():
                if self.fetch_served is None:
                    raise UsageError("No MCP server is available here", hint="Run this in the folder of a workspace")
                served = await self.fetch_served(source)
                check_free_disk(self.home, sum(map(len, served.files.values())), limits=self.limits)
                await anyio.to_thread.run_sync(_write_served, served, tree)
                return None
            case FolderSource(path=path):
                if not path.is_dir():
                    raise UsageError(f"{str(path)!r} is not a folder", hint="Give a git address or a folder")
                await anyio.to_thread.run_sync(lambda: copy_folder(path, tree, limits=self.limits))
                return None

    def _check_free(self, name: str, previous: RegistryEntry | None) -> None:
        canonical = canonical_name(name)
        hint = "Add it under another name with --name"
        if canonical in self.taken:
            raise UsageError(f"Skill {name!r} is bundled with Metier", hint=hint)
        if previous is not None:
            hint = f"`agent skill update {canonical}` brings it up to date; --name adds this one under another name"
            raise UsageError(f"Skill {name!r} is already installed", hint=hint)
        if self.home.visible(canonical).exists():
            raise UsageError(f"Folder {str(self.home.visible(canonical))!r} exists already", hint=hint)

    def _is_in_place(self, previous: RegistryEntry, proposal: Proposal) -> bool:
        if previous.tree != proposal.digest.tree:
            return False
        try:
            return digest_tree(self.home.visible(previous.name_canonical)).tree == previous.tree
        except SkillError:
            return False

    def _reuse_installed(self, proposal: Proposal, previous: RegistryEntry, confirm: Confirm) -> Outcome:
        """Keep an installed skill with identical bytes. Only the trust decision can change."""
        if previous.trusted_digest == previous.tree or confirm(proposal) != "trust":
            return Outcome(status="unchanged", proposal=proposal, entry=previous)
        entry = previous.model_copy(update={"trusted": True, "trusted_digest": previous.tree})
        with open_registry(self.home) as registry:
            self._check_unchanged(registry, previous.name, previous)
            save_registry(self.home, registry.with_entry(entry))
        return Outcome(status="updated", proposal=proposal, entry=entry)

    def _check_unchanged(self, registry: Registry, name: str, expected: RegistryEntry | None) -> None:
        # The registry isn't locked while the user reads the proposal and decides.
        if registry.find(name) != expected:
            raise SkillError(f"Skill {name!r} was changed by another process meanwhile", hint="Try again")

    def _compare(self, fresh: Proposal, previous: RegistryEntry) -> Proposal:
        installed = self.home.visible(previous.name_canonical)
        report, local = CapabilityReport(), ("the whole folder",)
        reading = load_skill(installed) if installed.is_dir() else None
        try:
            digest = digest_tree(installed)
            local = list_changes(previous.files, digest.files) if digest.tree != previous.tree else ()
            report = build_report(reading.skill, digest) if reading and reading.skill else report
        # A link or another special file in the installed folder is a local change too.
        except SkillRejected as error:
            local = (error.message,)
        except SkillError:
            pass
        diff = diff_files(diff_reports(report, fresh.report), old=previous.files, new=fresh.digest.files)
        return replace(fresh, previous=previous, diff=diff, local_changes=local)

    def _update_pin(self, previous: RegistryEntry, proposal: Proposal) -> RegistryEntry:
        """Record a newer commit with the same bytes. The skill stays trusted."""
        commit = proposal.ref.commit if proposal.ref else None
        if commit == previous.commit_sha:
            return previous
        entry = previous.model_copy(update={"commit_sha": commit})
        with open_registry(self.home) as registry:
            # If another process changed the skill meanwhile, its entry stays.
            if registry.find(previous.name) == previous:
                save_registry(self.home, registry.with_entry(entry))
        return entry

    def _finish(self, proposal: Proposal, previous: RegistryEntry | None, answer: Answer) -> Outcome:
        if answer == "stop":
            return Outcome(status="declined", proposal=proposal, entry=previous)
        entry = self._entry(proposal, is_trusted=answer == "trust")
        with open_registry(self.home) as registry:
            self._check_unchanged(registry, proposal.name, previous)
            if previous is None:
                # Again, under the lock: the folder may have appeared while the user decided.
                self._check_free(proposal.name, None)
            place(self.home, registry, entry, staged=proposal.definition.folder)
        return Outcome(status="updated" if previous else "installed", proposal=proposal, entry=entry)

    def _entry(self, proposal: Proposal, *, is_trusted: bool) -> RegistryEntry:
        canonical = canonical_name(proposal.name)
        source, ref = proposal.source, proposal.ref
        return RegistryEntry(
            name=proposal.name,
            name_canonical=canonical,
            git_url=source.url if isinstance(source, GitSource) else None,
            commit_sha=ref.commit if ref else None,
            branch=ref.branch if ref else None,
            tag=ref.tag if ref else None,
            subdir=source.subdir if isinstance(source, GitSource) else "",
            source_path=str(source.path.resolve()) if isinstance(source, FolderSource) else None,
            served_at=source.describe() if isinstance(source, McpSource) else None,
            installed_path=str(self.home.visible(canonical)),
            installed_at=self.clock.now(),
            trusted=is_trusted,
            trusted_digest=proposal.digest.tree if is_trusted else None,
            tree=proposal.digest.tree,
            files=proposal.digest.files,
        )


def _write_served(served: ServedSkill, tree: Path) -> None:
    check_paths(served.files)
    for path, data in served.files.items():
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def source_of(entry: RegistryEntry) -> InstallSource:
    """Return the source of an update: the installed branch or tag, else the same commit."""
    if entry.served_at is not None:
        return parse_source(entry.served_at)
    if entry.git_url is None:
        return FolderSource(path=Path(entry.source_path or entry.installed_path))
    ref = entry.commit_sha
    if entry.branch:
        ref = f"refs/heads/{entry.branch}"
    elif entry.tag:
        ref = f"refs/tags/{entry.tag}"
    return GitSource(url=entry.git_url, ref=ref, subdir=entry.subdir)


def list_changes(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """Return added, changed and removed paths, sorted. Changes of only the executable bit are not listed."""
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return tuple(sorted(names)) or ("a file's executable bit",)


def _folder_name(source: InstallSource) -> str:
    """Return the name of the folder or repository, for a skill without a `name`."""
    match source:
        case FolderSource(path=path):
            found = path.resolve().name
        case McpSource(skill=skill):
            found = skill.removesuffix("/SKILL.md").rpartition("/")[2]
        case GitSource(url=url, subdir=subdir):
            # `git@host:skill.git` has a colon where a URL has a slash.
            found = PurePosixPath(subdir or url.rstrip("/").replace(":", "/")).name.removesuffix(".git")
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in found)[:64] or "skill"


def _relative(problem: Problem, tree: Path) -> Problem:
    """Make the path relative to the skill, because the staging folder is gone when the user reads the problem."""
    return replace(problem, file=problem.file.removeprefix(f"{tree}/") if problem.file != str(tree) else tree.name)


def _check_installable_name(name: str, problems: Sequence[Problem]) -> None:
    """Reject an invalid name from the author. The folder's name doesn't matter, because the user chose it."""
    if unusable := next((problem for problem in problems if problem.code == NAME_NOT_USED), None):
        raise InvalidName(unusable.message, hint="--name gives the skill another name")
    try:
        check_name(name)
    except UsageError as error:
        error.hint = f"{error.hint}; --name gives the skill another name"
        raise


def _transport_warning(source: InstallSource) -> str:
    if isinstance(source, GitSource) and source.url.startswith(("http://", "git://")):
        return "The connection is not encrypted, so the download can be modified in transit"
    return ""
