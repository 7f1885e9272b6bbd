"""Git worktrees of isolated runs. They are in the home folder, outside of the workspace and its runs."""

from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from metier.engine.entries.run import RunWorktree
from metier.engine.execution.child_execution import save_changes
from metier.engine.journal import read_entries
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.errors import ConfigError, UsageError
from metier.runtime.host import Host
from metier.runtime.records.run_folders import is_folder_name
from metier.store.base import ENDED, Store
from metier.tools.files.snapshots import Unavailable, Worktree

FOLDER = ".agent/worktrees"
_KEPT = "kept"
"""Marker file of a worktree whose changes could not be read. It stays until the user removes it."""


def locate_worktree(host: Host, run_id: str) -> Worktree:
    return Worktree(host.home / FOLDER / run_id)


async def enter_worktree(host: Host, run_id: str, *, has_own: bool, parent: RunWorktree | None) -> Host:
    """Return the host of a new run, in its own worktree or in its parent's folder.

    Raises `UsageError` if no worktree can be created.
    """
    inherited = replace(host, worktree=parent)
    if not has_own:
        return inherited
    worktree = locate_worktree(host, run_id)
    # A copy of the workspace must contain neither its records nor other copies.
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


def check_worktree(host: Host) -> None:
    """Raise `ConfigError` if the worktree of a run is missing."""
    if host.worktree is not None and not host.root.is_dir():
        raise ConfigError(
            f"The worktree {host.worktree.path!r} of the run is gone",
            hint="End the run with `agent runs cancel`, then start it again",
        )


class PlaceWorktrees(Struct, frozen=True):
    """Reads the changes of a host's runs in their worktrees."""

    host: Host

    async def read(self, run_id: str, tree: RunWorktree) -> bytes:
        """Return the changes as a patch. Raises `Unavailable`; then the worktree is kept."""
        worktree = locate_worktree(self.host, run_id)
        try:
            return await run_sync(worktree.diff, tree.base)
        except Unavailable:
            # Deleting it would lose the work of the child.
            (worktree.folder / _KEPT).touch()
            raise


async def remove_ended(host: Host, store: Store, state: RunState, *, folder: Path) -> None:
    """Remove worktrees whose changes are recorded in the parent.

    Once the parent has ended, also remove those of children whose end it did not record. Their changes are saved as
    artifacts of the parent.
    """
    for child in state.children:
        worktree = locate_worktree(host, child.run_id)
        # The ID comes from a journal, which may be imported. It must not become a path that leads elsewhere.
        if not is_folder_name(child.run_id) or not worktree.folder.exists() or (worktree.folder / _KEPT).exists():
            continue
        if child.ended is not None or (
            state.phase in FINAL and await _save_unrecorded(host, store, child.run_id, folder=folder)
        ):
            await run_sync(worktree.remove, _get_source(host, state))


def remove_deleted(host: Host, run_id: str) -> None:
    """Remove the worktree of a deleted run, even one with unsaved changes. Blocks."""
    if is_folder_name(run_id):
        locate_worktree(host, run_id).remove(host.workspace)


async def _save_unrecorded(host: Host, store: Store, run_id: str, *, folder: Path) -> bool:
    """Save the changes of an ended child that its parent did not record. Return True if its worktree may be removed."""
    row = await store.find_run(run_id)
    if row is None:
        return True  # killed before the run started
    if row.status not in ENDED or row.driver:
        return False
    state = fold(run_id, await read_entries(store, run_id))
    tree = state.started.worktree if state.started is not None else None
    if tree is None:
        return True
    try:
        diff = await PlaceWorktrees(host).read(run_id, tree)
        if diff:
            save_changes(folder, run_id, diff)
    except (Unavailable, OSError):
        return False
    return True


def _get_source(host: Host, state: RunState) -> Path:
    return Path(state.started.root) if state.started is not None else host.workspace
