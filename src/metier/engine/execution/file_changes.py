"""The file changes of a step: the named file for `Write` and `Edit`, the whole workspace for programs.

The intent records the state before the step, so that a step that a crash interrupted can be undone too.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio.to_thread
from anyio.to_thread import run_sync
from msgspec import Struct, convert
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.context.control import CONTROL_NAMES
from metier.engine.entries.run import RunFailed
from metier.engine.entries.step import FileChange, StepFinished
from metier.engine.journal import RunLog
from metier.engine.services import Services, WorkspaceSnapshots
from metier.engine.state.steps import Step
from metier.errors import ToolFailed
from metier.store.base import Store
from metier.tools.files.file_state import FileSnapshot, FileState, are_same, read_state
from metier.tools.files.file_text import is_unsaved
from metier.tools.files.snapshots import Unavailable
from metier.tools.process.sandbox.protected_paths import ProtectedSnapshot
from metier.values import dump_fields

FILE_TOOLS = frozenset({"Write", "Edit"})
SNAPSHOT, FILE, UNKNOWN = "snapshot", "file", "unknown"


async def record_before(steps: Sequence[Step], services: Services) -> dict[str, JsonValue]:
    """Return the state of the files before each step's effect; steps that only read have none."""
    noted: dict[str, JsonValue] = {}
    for step in steps:
        name, arguments = name_call(step.action)
        if services.policy.effect(step.action) == "read" or name in CONTROL_NAMES:
            continue
        # Without git, a snapshot reads every file of the workspace. For these tools one file is enough.
        if name in FILE_TOOLS:
            await _save_buffer(str(arguments.get("path", "")), services)
            noted[step.step_id] = await _record_file(str(arguments.get("path", "")), services)
        elif name not in WITHOUT_PROGRAMS:
            noted[step.step_id] = await _record_workspace(services)
    return noted


async def add_changes(finished: StepFinished, step: Step, services: Services) -> StepFinished:
    """Add the step's changes since its intent to the result."""
    before = step.started.before if step.started is not None else None
    if not isinstance(before, dict) or services.snapshots is None:
        return finished
    try:
        changes = await list_changes(before, services.snapshots, store=services.store, workspace=services.workspace)
    except (Unavailable, OSError, ToolFailed) as error:
        return replace(finished, changes_unknown=_describe(error))
    return replace(finished, changes=tuple(changes), changes_unknown=str(before.get(UNKNOWN, "")))


async def list_changes(
    before: Mapping[str, JsonValue], snapshots: WorkspaceSnapshots, *, store: Store, workspace: Path
) -> list[FileChange]:
    """List the differences from the state in an intent. Raises `Unavailable`, `OSError`, `ToolFailed`."""
    if isinstance(name := before.get(SNAPSHOT), str):
        after = await run_sync(snapshots.take)
        # A snapshot is named after its content, so equal names need no comparison.
        found = await run_sync(snapshots.compare, name, after) if after != name else []
        for change in found:
            # An undo restores the files from these blobs.
            for data in change.contents:
                await store.put_blob(data)
        return [FileChange(path=each.path, before=each.before, after=each.after) for each in found]
    if isinstance(path := before.get(FILE), str):
        noted = before.get("state")
        old = convert(noted, FileState) if noted is not None else None
        new = await store_file(await run_sync(read_state, workspace, path), store)
        return [] if are_same(old, new) else [FileChange(path=path, before=old, after=new)]
    return []


async def store_file(found: FileSnapshot | None, store: Store) -> FileState | None:
    """Store a file's content, and return the file's state."""
    if found is None:
        return None
    if found.state.is_kept:
        await store.put_blob(found.data)
    return found.state


async def _record_file(path: str, services: Services) -> JsonValue:
    """Return the state of a file by its real path: the tool follows links within the workspace."""
    if services.snapshots is None:
        return None
    workspace = services.workspace
    try:
        real = await run_sync(_get_real_name, workspace, path)
        found = await store_file(await run_sync(read_state, workspace, real), services.store)
    except (OSError, ToolFailed) as error:
        return {UNKNOWN: _describe(error)}
    return {FILE: real, "state": dump_fields(found) if found else None}


async def _save_buffer(path: str, services: Services) -> None:
    """Save the editor's unsaved buffer, so that the step changes what the user sees and undo restores it."""
    file = services.workspace / path
    held = await services.buffers.read(file)
    if held is None:
        return
    with suppress(OSError, ToolFailed):  # the tool reports the problem
        real = await run_sync(_get_real_name, services.workspace, path)
        found = await run_sync(read_state, services.workspace, real)
        if is_unsaved(held, found.data if found is not None else None):
            await services.buffers.save(file, held)


def _get_real_name(workspace: Path, path: str) -> str:
    # Both are resolved, because the path of the workspace may contain a link too.
    return os.path.relpath(os.path.realpath(workspace / path), os.path.realpath(workspace))


async def _record_workspace(services: Services) -> JsonValue:
    if services.snapshots is None:
        return None
    try:
        return {SNAPSHOT: await run_sync(services.snapshots.take)}
    except (Unavailable, OSError) as error:
        return {UNKNOWN: _describe(error)}


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "a file cannot be read"
    return error.message if isinstance(error, ToolFailed) else str(error)


PROTECTED_CHANGED = "protected_changed"
RECORDS_MOVED = "records_moved"
WITHOUT_PROGRAMS = frozenset({"Read", "Write", "Edit", "Glob", "Grep", "WebFetch", "WebSearch", "script_list"})
"""Built-in tools that start no program."""


class BeforePrograms(Struct, frozen=True):
    """State of protected files before programs ran."""

    protected: ProtectedSnapshot
    """Empty if no program is confined."""
    folder: tuple[int, int] | None
    """Device and inode of the run's folder; None if it doesn't exist."""


async def snapshot_protected(steps: Sequence[Step], services: Services) -> BeforePrograms | None:
    """Return the state of protected files; None if no program is about to run."""
    if all(name_call(step.action)[0] in WITHOUT_PROGRAMS for step in steps):
        return None
    protected: ProtectedSnapshot = {}
    if services.protected is not None:
        protected = await anyio.to_thread.run_sync(services.protected.snapshot)
    return BeforePrograms(protected, _identify_folder(services))


async def end_if_changed(before: BeforePrograms | None, log: RunLog, services: Services) -> bool:
    """Fail the run if a program changed a protected path, or moved the run's folder.

    Protected paths contain the instructions of this and later runs, and the folder contains the run's records.
    """
    if before is None:
        return False
    # Restore the files before the run ends, because other runs read them. The folder is compared by inode: a program
    # can replace it by another one of the same name.
    failure: RunFailed | None = None
    if services.protected is not None and (
        changes := await anyio.to_thread.run_sync(services.protected.roll_back, before.protected)
    ):
        failure = RunFailed(reason=PROTECTED_CHANGED, message=changes)
    elif before.folder is not None and before.folder != _identify_folder(services):
        failure = RunFailed(reason=RECORDS_MOVED, message=describe_moved(services))
    if failure is None:
        return False
    await log.record(failure)
    return True


def _identify_folder(services: Services) -> tuple[int, int] | None:
    try:
        found = services.run_folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def describe_moved(services: Services) -> str:
    return (
        f"The folder of this run '{services.run_folder}' was moved or removed while a program of the run was at work. "
        "What came after is not on record there; put the folder back before you resume or replay the run"
    )
