"""Where runs work that have a worktree each: below the home folder, outside the workspace and its runs."""

from dataclasses import replace
from pathlib import Path

from anyio.to_thread import run_sync

from metier.dataclass import dataclass
from metier.engine.entries import RunWorktree
from metier.engine.state import RunState
from metier.errors import ConfigError, UsageError
from metier.runtime.host import Host
from metier.tools.files.snapshots import Unavailable
from metier.tools.files.worktrees import Worktree

FOLDER = ".agent/worktrees"
_KEPT = "kept"
"""Marks one whose changes could not be read: it stays until a person removes it."""


def locate_worktree(place: Host, run_id: str) -> Worktree:
    return Worktree(place.home / FOLDER / run_id)


async def enter_worktree(host: Host, run_id: str, *, has_own: bool, above: RunWorktree | None) -> Host:
    """The host of a run that begins: in a worktree of its own, made now, else where the run above it works.

    Raises `UsageError` where none can be made.
    """
    inherited = replace(host, worktree=above)
    if not has_own:
        return inherited
    worktree = locate_worktree(host, run_id)
    excluded = [
        folder.relative_to(host.workspace).as_posix()
        for folder in (host.runs, host.home / FOLDER)
        if folder != host.workspace and folder.is_relative_to(host.workspace)
    ]
    try:
        base = await run_sync(lambda: worktree.make(inherited.root, excluded=tuple(excluded)))
    except Unavailable as why:
        raise UsageError(f"A worktree for it cannot be made: {why}", hint="Ask for it without isolation") from why
    return replace(host, worktree=RunWorktree(path=str(worktree.tree), base=base))


def check_worktree(place: Host) -> None:
    """Raises `ConfigError` where the worktree of a run is gone."""
    if place.worktree is not None and not place.root.is_dir():
        raise ConfigError(
            f"The worktree {place.worktree.path!r} of the run is gone",
            hint="End the run with `agent runs cancel`, then start it again",
        )


@dataclass(frozen=True, slots=True)
class PlaceWorktrees:
    """Reads what the runs of a host changed in their worktrees."""

    place: Host

    async def read(self, run_id: str, tree: RunWorktree) -> bytes:
        """A patch. Raises `Unavailable`, and then the worktree is kept."""
        worktree = locate_worktree(self.place, run_id)
        try:
            return await run_sync(worktree.diff, tree.base)
        except Unavailable:
            (worktree.folder / _KEPT).touch()
            raise


async def remove_ended(place: Host, state: RunState) -> None:
    """Remove the worktrees of runs whose changes are on record in the run above; also what a kill left of them."""
    for child in state.children:
        worktree = locate_worktree(place, child.run_id)
        is_due = child.ended is not None and worktree.folder.exists() and not (worktree.folder / _KEPT).exists()
        if is_due:
            await run_sync(worktree.remove, _find_source(place, state))


def _find_source(place: Host, state: RunState) -> Path:
    return Path(state.started.root) if state.started is not None else place.workspace
