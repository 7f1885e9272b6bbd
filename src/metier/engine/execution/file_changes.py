"""Find out which files a step changes: the file itself for `Write` and `Edit`, the whole workspace around a program.

What was there before is noted with the intent, so that a step that a kill cut short can be undone too.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.context.control import CONTROL_NAMES
from metier.engine.entries.step import FileChange, StepFinished
from metier.engine.execution.protecting import WITHOUT_PROGRAMS
from metier.engine.services import Services
from metier.engine.snapshotting import Snapshotting
from metier.engine.steps import Step
from metier.errors import ToolFailed
from metier.store.base import Store
from metier.tools.files.file_state import FileState, Found, are_same, look_at
from metier.tools.files.file_text import is_unsaved
from metier.tools.files.snapshots import Unavailable

FILE_TOOLS = frozenset({"Write", "Edit"})
SNAPSHOT, FILE, UNKNOWN = "snapshot", "file", "unknown"


async def note_before(steps: Sequence[Step], services: Services) -> dict[str, JsonValue]:
    """By step, what an intent says of the files before its effect; nothing for steps that only read."""
    noted: dict[str, JsonValue] = {}
    for step in steps:
        name, arguments = name_call(step.action)
        if services.policy.effect(step.action) == "read" or name in CONTROL_NAMES:
            continue
        if name in FILE_TOOLS:
            await _save_buffer(str(arguments.get("path", "")), services)
            noted[step.step_id] = await _note_file(str(arguments.get("path", "")), services)
        elif name not in WITHOUT_PROGRAMS:
            noted[step.step_id] = await _note_workspace(services)
    return noted


async def add_changes(finished: StepFinished, step: Step, services: Services) -> StepFinished:
    """The result, with what the step changed since its intent was recorded."""
    before = step.started.before if step.started is not None else None
    if not isinstance(before, dict) or services.snapshots is None:
        return finished
    try:
        changes = await find_changes(before, services.snapshots, store=services.store, workspace=services.workspace)
    except (Unavailable, OSError, ToolFailed) as error:
        return finished.model_copy(update={"changes_unknown": _describe(error)})
    return finished.model_copy(update={"changes": tuple(changes), "changes_unknown": str(before.get(UNKNOWN, ""))})


async def find_changes(
    before: Mapping[str, JsonValue], snapshots: Snapshotting, *, store: Store, workspace: Path
) -> list[FileChange]:
    """What differs now from what an intent noted. Raises `Unavailable`, `OSError`, `ToolFailed`."""
    if isinstance(name := before.get(SNAPSHOT), str):
        after = await run_sync(snapshots.take)
        found = await run_sync(snapshots.compare, name, after) if after != name else []
        for change in found:
            for data in change.contents:
                await store.put_blob(data)
        return [FileChange(path=each.path, before=each.before, after=each.after) for each in found]
    if isinstance(path := before.get(FILE), str):
        noted = before.get("state")
        old = FileState.model_validate(noted) if noted is not None else None
        new = await keep(await run_sync(look_at, workspace, path), store)
        return [] if are_same(old, new) else [FileChange(path=path, before=old, after=new)]
    return []


async def keep(found: Found | None, store: Store) -> FileState | None:
    """The state of a file whose content is in the store now."""
    if found is None:
        return None
    if found.state.is_kept:
        await store.put_blob(found.data)
    return found.state


async def _note_file(path: str, services: Services) -> JsonValue:
    """By its real name: the tool follows links that stay in the workspace."""
    if services.snapshots is None:
        return None
    workspace = services.workspace
    try:
        real = await run_sync(_find_real_name, workspace, path)
        found = await keep(await run_sync(look_at, workspace, real), services.store)
    except (OSError, ToolFailed) as error:
        return {UNKNOWN: _describe(error)}
    return {FILE: real, "state": cast("JsonValue", found.model_dump(mode="json")) if found else None}


async def _save_buffer(path: str, services: Services) -> None:
    """What the user sees in the editor is what the step changes and what undoing it brings back."""
    file = services.workspace / path
    held = await services.buffers.read(file)
    if held is None:
        return
    with suppress(OSError, ToolFailed):  # then the tool says what is wrong with it
        real = await run_sync(_find_real_name, services.workspace, path)
        found = await run_sync(look_at, services.workspace, real)
        if is_unsaved(held, found.data if found is not None else None):
            await services.buffers.save(file, held)


def _find_real_name(workspace: Path, path: str) -> str:
    return os.path.relpath(os.path.realpath(workspace / path), os.path.realpath(workspace))


async def _note_workspace(services: Services) -> JsonValue:
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
