"""Undo of a run's file changes: plan, preview and apply. The plan is built from the journal and the current files."""

import difflib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from metier.engine.entries.entry import Entry
from metier.engine.entries.run import RunAdopted
from metier.engine.entries.step import FileChange, UndoFinished, UndoStarted
from metier.engine.entries.task import ChildRequested
from metier.engine.execution.file_changes import list_changes, store_file
from metier.engine.file_timeline import (
    FileEffect,
    Restoration,
    find_open_undo,
    list_effects,
    plan_restorations,
    select,
)
from metier.engine.journal import read_entries
from metier.errors import ToolFailed, UsageError
from metier.runtime.build import open_snapshots
from metier.runtime.records.signatures import is_started_here
from metier.runtime.runs import Runtime
from metier.store.failures import BlobUnknown
from metier.tools.files.file_state import FileState, are_same, read_state, restore
from metier.tools.files.snapshots import Unavailable

CANNOT = (
    "Not undone: what was sent over the network, files outside of the workspace, files that git ignores, and commits, "
    "branches and the index of a repository"
)


class PlannedFile(Struct, frozen=True, kw_only=True):
    path: str
    now: FileState | None
    target: FileState | None
    is_conflict: bool = False
    """True if the file was changed after the run."""
    cannot: str = ""
    """Reason why it can't be restored."""
    diff: str = ""
    """Diff from the current to the restored content."""

    @property
    def is_done(self) -> bool:
        return are_same(self.now, self.target)

    @property
    def verb(self) -> str:
        return "remove" if self.target is None else "bring back" if self.now is None else "restore"


class UndoPlan(Struct, frozen=True, kw_only=True):
    run_id: str
    to: str
    """Name of the first effect to undo."""
    files: tuple[PlannedFile, ...]
    unknown: tuple[str, ...] = ()
    """Steps with unknown changes."""
    open_undo: UndoStarted | None = None
    """An interrupted undo that will be completed."""

    @property
    def waiting(self) -> tuple[PlannedFile, ...]:
        return tuple(file for file in self.files if not file.is_done and not file.cannot)

    @property
    def conflicts(self) -> tuple[PlannedFile, ...]:
        return tuple(file for file in self.waiting if file.is_conflict)


class Undone(Struct, frozen=True, kw_only=True):
    undo_id: str
    restored: tuple[str, ...]
    left_alone: tuple[str, ...]


async def read_effects(
    runtime: Runtime,
    run_id: str,
    *,
    prefix: str = "",
    only_here: bool = False,
    entries: Sequence[Entry] | None = None,
) -> list[FileEffect]:
    """List the file changes of a run and its child runs, in order. Interrupted steps are examined now.

    With `only_here`, changes on another machine are left out, and a run that was not started here raises `UsageError`.
    """
    found: list[FileEffect] = []
    entries = await read_entries(runtime.store, run_id) if entries is None else entries
    for effect in list_effects(run_id, _keep_here(runtime, run_id, entries) if only_here else entries, prefix=prefix):
        if isinstance(effect, ChildRequested):
            if effect.order.worktree:
                continue  # it changed files in its own worktree only
            child = effect.child_run_id
            found += await read_effects(runtime, child, prefix=f"{child}:", only_here=only_here)
        elif isinstance(effect.before, dict):
            found.append(await _look_again(runtime, effect))
        else:
            found.append(effect)
    return found


async def plan_undo(runtime: Runtime, run_id: str, *, to: str = "") -> UndoPlan:
    """Plan the changes of an undo. Raises `UsageError` for an unknown step and for an imported run."""
    pending = find_open_undo(_keep_here(runtime, run_id, await read_entries(runtime.store, run_id)))
    if pending is not None:
        wanted = [Restoration(path=each.path, expected=each.before, target=each.after) for each in pending.changes]
        # Files that the interrupted undo had restored are found to be done, and are not written again.
        files = [await _plan_file(runtime, each, is_certain=True) for each in wanted]
        return UndoPlan(run_id=run_id, to=pending.to_step, files=tuple(files), open_undo=pending)
    effects = select(await read_effects(runtime, run_id, only_here=True), to)
    # A step without a result may not have made these changes itself, so they count as conflicts.
    doubted = {change.path for effect in effects if effect.before is not None for change in effect.changes}
    files = [
        await _plan_file(runtime, each, is_certain=each.path not in doubted) for each in plan_restorations(effects)
    ]
    return UndoPlan(
        run_id=run_id,
        to=effects[0].name if effects else "",
        files=tuple(sorted(files, key=lambda file: file.path)),
        unknown=tuple(f"{effect.name} ({effect.what}): {effect.unknown}" for effect in effects if effect.unknown),
    )


async def undo(runtime: Runtime, plan: UndoPlan, *, by: str, overwrite: bool = False) -> Undone:
    """Restore the files, conflicts only with `overwrite`. Raises `LeaseHeld` while the run is driven."""
    chosen = [file for file in plan.waiting if overwrite or not file.is_conflict]
    async with runtime.writing(plan.run_id) as log:
        # The intent is recorded before any file is written: after a crash, the same undo is completed.
        intent = plan.open_undo
        if intent is None:
            intent = UndoStarted(
                undo_id=f"undo-{log.state.undone + 1}",
                to_step=plan.to,
                changes=tuple([await _keep_change(runtime, file) for file in chosen]),
                undone_by=by,
            )
            await log.record(intent)
        restored, failed = await _restore(runtime, chosen)
        left = [f"{file.path}: {file.cannot}" for file in plan.files if file.cannot]
        left += [f"{file.path}: it changed since" for file in plan.conflicts if not overwrite]
        ended = UndoFinished(undo_id=intent.undo_id, files=len(restored), left_alone=(*left, *failed))
        await log.record(ended)
        return Undone(undo_id=intent.undo_id, restored=tuple(restored), left_alone=ended.left_alone)


async def render_change(runtime: Runtime, change: FileChange) -> str:
    """Render the change as a unified diff, or a message for binary or missing content."""
    before, after = [await _read(runtime, state) for state in (change.before, change.after)]
    return _render_diff(change.path, (change.before, before), (change.after, after))


class StepChanges(Struct, frozen=True, kw_only=True):
    """File changes of one step or one undo."""

    step: str
    """Step ID, prefixed with the run ID in a child run."""
    tool: str
    unknown: str
    """Reason why its changes are unknown."""
    changes: dict[str, str]
    """Unified diff by path, not redacted."""


async def read_changes(runtime: Runtime, run_id: str, *, entries: Sequence[Entry] | None = None) -> list[StepChanges]:
    """List the changes of a run and its child runs in order, without steps that changed nothing."""
    return [
        StepChanges(
            step=effect.name,
            tool=effect.what,
            unknown=effect.unknown,
            changes={change.path: await render_change(runtime, change) for change in effect.changes},
        )
        for effect in await read_effects(runtime, run_id, entries=entries)
        if effect.changes or effect.unknown
    ]


async def _restore(runtime: Runtime, files: Sequence[PlannedFile]) -> tuple[list[str], list[str]]:
    """Restore the files. Deletions come first, deepest paths first, because a file may replace a folder."""
    restored: list[str] = []
    failed: list[str] = []
    gone = sorted((file for file in files if file.target is None), key=lambda file: -len(Path(file.path).parts))
    back = [file for file in files if file.target is not None]
    for file in (*gone, *back):
        data = await _read(runtime, file.target) or b""
        try:
            await run_sync(partial(restore, runtime.host.workspace, file.path, state=file.target, data=data))
        except (OSError, ToolFailed) as error:
            failed.append(f"{file.path}: {error.strerror if isinstance(error, OSError) else error.message}")
        else:
            restored.append(file.path)
    return restored, failed


async def _keep_change(runtime: Runtime, file: PlannedFile) -> FileChange:
    """Save the current content before it is replaced, so that the undo can be undone."""
    now = await store_file(await run_sync(read_state, runtime.host.workspace, file.path), runtime.store)
    return FileChange(path=file.path, before=now, after=file.target)


async def _plan_file(runtime: Runtime, wanted: Restoration, *, is_certain: bool) -> PlannedFile:
    workspace = runtime.host.workspace
    try:
        found = await run_sync(read_state, workspace, wanted.path)
    except (OSError, ToolFailed) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        return PlannedFile(path=wanted.path, now=None, target=wanted.target, cannot=reason or "it cannot be read")
    now = found.state if found is not None else None
    planned = PlannedFile(path=wanted.path, now=now, target=wanted.target)
    if planned.is_done:
        return planned
    data = await _read(runtime, wanted.target)
    if wanted.target is not None and data is None:
        return replace(planned, cannot="what it was is not kept, because it was too large or is no file")
    is_conflict = not is_certain or not are_same(now, wanted.expected)
    shown = (now, found.data if found is not None else None)
    return replace(planned, is_conflict=is_conflict, diff=_render_diff(wanted.path, shown, (wanted.target, data)))


def _keep_here(runtime: Runtime, run_id: str, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries recorded in this store. An imported journal must not choose files to write."""
    if not is_started_here(runtime.host, run_id, entries):
        raise UsageError(
            f"Run {run_id!r} was not started here, so nothing is written back from it",
            hint=f"`agent runs show {run_id}` tells what it did",
        )
    last = max((number for number, entry in enumerate(entries) if isinstance(entry, RunAdopted)), default=0)
    return entries[last:]


async def _look_again(runtime: Runtime, effect: FileEffect) -> FileEffect:
    """Find the changes of a step without a result. They may have been made by the step or by another program."""
    assert isinstance(effect.before, dict)
    if unknown := effect.before.get("unknown"):
        return replace(effect, unknown=str(unknown), before=None)
    snapshots = open_snapshots(runtime.host, runtime.folder(effect.run_id))
    try:
        changes = await list_changes(effect.before, snapshots, store=runtime.store, workspace=runtime.host.workspace)
    except (Unavailable, OSError, ToolFailed) as error:
        return replace(effect, unknown=str(error), before=None)
    return replace(effect, changes=tuple(changes))


async def _read(runtime: Runtime, state: FileState | None) -> bytes | None:
    if state is None or not state.is_kept:
        return None
    try:
        return await runtime.store.get_blob(state.sha256)
    # Reported for this file, so that the others can still be restored.
    except BlobUnknown:
        return None


type _Shown = tuple[FileState | None, bytes | None]


def _render_diff(path: str, before: _Shown, after: _Shown) -> str:
    texts = [_as_lines(*side) for side in (before, after)]
    if texts[0] is None or texts[1] is None:
        return f"{path}: no text, or not kept\n"
    names = [f"a/{path}" if before[0] else "/dev/null", f"b/{path}" if after[0] else "/dev/null"]
    modes = [f"{side[0].mode:o}" if side[0] else "" for side in (before, after)]
    head = f"mode {modes[0]} → {modes[1]}\n" if all(modes) and modes[0] != modes[1] else ""
    return head + "".join(difflib.unified_diff(texts[0], texts[1], names[0], names[1]))


def _as_lines(state: FileState | None, data: bytes | None) -> list[str] | None:
    if state is None:
        return []
    # Git recognizes binary files in the same way.
    if data is None or b"\0" in data[:8000]:
        return None
    text = data.decode("utf-8", "replace")
    return [line if line.endswith("\n") else f"{line}\n" for line in text.splitlines(keepends=True)]
