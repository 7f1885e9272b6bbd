"""Updates of installed skills in two steps: show the changes, then install exactly those."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import read_contained
from metier.definitions.names import canonical_name
from metier.errors import SkillRejected, UsageError
from metier.runtime.host import Host
from metier.runtime.served_skills import fetch_served
from metier.runtime.workspace.skill_catalog import get_all_skills
from metier.skills.activation import USER_FOLDERS
from metier.skills.install.installed import RegistryEntry, SkillHome
from metier.skills.install.operations import Answer, Installer, Outcome, Proposal
from metier.skills.install.placement import read_registry
from metier.views.diff import build_diff

_MAX_FILES = 60
_MAX_BYTES = 200_000


class SkillUpdate(Struct, frozen=True, kw_only=True):
    """The changes of an update. Nothing of it is installed."""

    outcome: Outcome
    diffs: Mapping[str, str]
    """Unified diffs of text files; for a binary file, a sentence."""

    @property
    def is_new(self) -> bool:
        return self.outcome.status != "unchanged"

    @property
    def proposal(self) -> Proposal:
        return self.outcome.proposal


def find_installed(host: Host, name: str) -> RegistryEntry | None:
    """Return the registry entry of the skill; None for workspace and bundled skills."""
    entry = read_registry(_get_home(host)).find(name)
    return entry if entry is not None and entry.is_installed else None


async def look_for_update(host: Host, name: str) -> SkillUpdate:
    """Fetch the skill from its source and compare. Raises `SkillNotFound`, `SkillError`."""
    diffs: dict[str, str] = {}

    def look(proposal: Proposal) -> Answer:
        # The fetched files are there for as long as the question takes.
        diffs.update(_compare_files(proposal))
        return "stop"

    outcome = await _build_installer(host).update(name, confirm=look)
    return SkillUpdate(outcome=outcome, diffs=diffs)


async def take_update(host: Host, name: str, *, tree: str, is_trusted: bool) -> Outcome:
    """Install the update whose hash is `tree`, trusted or not. Raises `SkillRejected` if it is another one."""

    def answer(proposal: Proposal) -> Answer:
        if proposal.digest.tree != tree:
            return "stop"
        return "trust" if is_trusted else "keep_untrusted"

    outcome = await _build_installer(host).update(name, confirm=answer)
    if outcome.status == "declined":
        raise SkillRejected(f"Skill {name!r} changed at its source since you looked", hint="Look at the update again")
    if outcome.status == "unchanged" and outcome.proposal.digest.tree != tree:
        raise UsageError(f"Skill {name!r} no longer has this update", hint="Review the update again")
    return outcome


def _build_installer(host: Host) -> Installer:
    bundled = [package for package in get_all_skills(host).packages if package.source == "bundled"]
    return Installer(
        home=_get_home(host),
        clock=host.clock,
        taken=frozenset(canonical_name(package.definition.name) for package in bundled),
        fetch_served=partial(fetch_served, host),
    )


def _get_home(host: Host) -> SkillHome:
    return SkillHome(host.home / USER_FOLDERS[0])


def _compare_files(proposal: Proposal) -> dict[str, str]:
    """Return the differing files in order, limited to the first ones."""
    diff, previous = proposal.diff, proposal.previous
    if diff is None or previous is None:
        return {}
    names = sorted((*diff.files_added, *diff.files_changed, *diff.files_removed))[:_MAX_FILES]
    old, new = Path(previous.installed_path), proposal.definition.folder
    return {name: _compare_file(name, old, new) for name in names}


def _compare_file(name: str, old: Path, new: Path) -> str:
    before, after = (_read(folder / name, within=folder) for folder in (old, new))
    if before is None or after is None:
        return f"{name}: no text, or too long to show"
    return build_diff(before, after, path=name)


def _read(file: Path, *, within: Path) -> str | None:
    """Read a file: empty if missing, None if it is not text."""
    try:
        data = read_contained(file, within=within, limit=_MAX_BYTES)
        return None if len(data) > _MAX_BYTES else data.decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        return None
