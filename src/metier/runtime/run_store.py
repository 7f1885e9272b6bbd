"""The store that holds the runs of a workspace.

Commands that only read runs need no more than this module; `runs`, which drives them, takes longer to import.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from msgspec import Struct

from metier.decisions import TaskState
from metier.definitions.names import PLUGIN
from metier.errors import UsageError
from metier.runtime.host import Host
from metier.runtime.records.run_folders import prepare_runs_folder
from metier.runtime.records.run_search import StatusFilter, read_run_page
from metier.skills.git_clones import is_tracked
from metier.skills.workspace_trust import knows_file, note_file
from metier.store.backend import DATABASE, open_store
from metier.store.base import RUNNABLE, RunRow, RunSearch, Store
from metier.store.failures import StoreUnavailable


async def open_host_store(host: Host) -> Store:
    """Open the store of the settings, which may be a plugin's. Raises `StoreUnavailable` if it can't serve."""
    options = host.settings.store
    if not options.backend.startswith(PLUGIN):
        return await open_store(options, runs=host.runs, environ=host.environ, clock=host.clock)
    # Imported here: loading plugins is slow, and few workspaces have a store from one.
    from metier.runtime.workspace.plugins import get_plugin_part, get_plugins

    registries = host.plugins or get_plugins(host).registries
    opening = get_plugin_part(
        options.backend, [each.stores for each in registries], kind="store", failure=StoreUnavailable
    )
    return await opening(host.environ.get(options.database_url_env, ""))


def check_runs(host: Host) -> bool:
    """Return True if the run database doesn't exist yet, so that `note_runs` must be called once it does.

    Raises `UsageError` for runs that came with a clone: a resumed run uses its pinned settings, policy and approvals
    without asking again, so a cloned database could grant permissions.
    """
    database = host.runs / DATABASE
    # By either name, because the path can be a link that came with a clone.
    is_inside = database.resolve().is_relative_to(host.workspace.resolve()) or database.is_relative_to(host.workspace)
    if host.trust.is_trusted or host.settings.store.backend != "sqlite" or not is_inside:
        return False
    if not database.exists():
        return True
    if is_tracked(database) or not knows_file(database, home=host.home):
        raise UsageError(
            f"The runs in {str(host.runs)!r} may have come with this folder, which you have not trusted "
            f"({host.trust.origin})",
            hint="Review the files of the folder, then run `agent trust`; or move the runs away",
        )
    return False


def note_runs(host: Host) -> None:
    """Remember that this user created the run database."""
    note_file(host.runs / DATABASE, home=host.home)


@asynccontextmanager
async def open_runs(host: Host) -> AsyncGenerator[Store]:
    """Yield the store with the runs of a workspace. Raises `StoreUnavailable`."""
    try:
        prepare_runs_folder(host.runs)
    except OSError as error:
        raise StoreUnavailable(
            f"The runs folder {str(host.runs)!r} cannot be made: {error.strerror}",
            hint="Choose a folder that you may write to with `logging.jsonl_dir`",
        ) from error
    is_first = check_runs(host)
    store = await open_host_store(host)
    # Noted right after this process created the database: a later one at this path may be from a clone.
    if is_first:
        note_runs(host)
    try:
        yield store
    finally:
        await store.close()


class StoredRunList(Struct, frozen=True):
    """The list of runs of a workspace, read from the index."""

    store: Store

    async def list_pages(self, *, status: str, limit: int) -> AsyncGenerator[list[RunRow]]:
        """List runs, newest first, with their progress so far."""
        statuses = StatusFilter(wanted=(status,) if status else ())
        left, before = limit, 0
        while left > 0:
            page = await read_run_page(self.store, RunSearch(), statuses, before=before, limit=min(_PAGE, left))
            yield [await count_progress(row, self.store) for row in page.rows]
            left, before = left - len(page.rows), page.next
            if not before:
                return


async def count_progress(row: RunRow, store: Store) -> RunRow:
    """Return the row with its turns, tokens and cost so far.

    The index is updated when a run stops, and lacks child runs that have not ended. This reads them from the journals.
    """
    if row.status not in _OPEN:
        return row
    # As plain JSON, because `agent runs list` would take much longer if it imported the engine.
    entries = [
        (stored.kind, cast("dict[str, Any]", json.loads(stored.data)))  # written by `engine.entries`
        for stored in await store.read_journal(row.run_id)
        if stored.kind in ("model_call_started", "model_replied", "delegated", "child_ended")
    ]
    own = _count_journal(row, entries) if row.status in RUNNABLE else row
    ended = {entry["child_run_id"] for kind, entry in entries if kind == "child_ended"}
    started = {entry["child_run_id"]: None for kind, entry in entries if kind == "delegated"}
    rows = [await store.find_run(child) for child in started if child not in ended]
    children = [await count_progress(child, store) for child in rows if child is not None]
    return replace(
        own,
        turns=own.turns + sum(child.turns for child in children),
        tokens=own.tokens + sum(child.tokens for child in children),
        cost_usd=own.cost_usd + sum(child.cost_usd for child in children),
    )


_PAGE = 500
"""Number of rows read at a time."""
_OPEN: tuple[TaskState, ...] = (*RUNNABLE, "input_required", "delegating", "paused")


def _count_journal(row: RunRow, entries: Sequence[tuple[str, dict[str, Any]]]) -> RunRow:
    last = children = tokens = 0
    cost = 0.0
    for kind, entry in entries:
        usage = entry["reply"]["usage"] if kind == "model_replied" else entry
        last = max(last, entry["turn"]) if kind == "model_call_started" else last
        children += entry.get("turns", 0) if kind == "child_ended" else 0
        tokens += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        cost += entry.get("cost_usd", 0.0)
    # The index may be higher: it includes costs of capabilities and hooks, which these entries lack.
    return replace(
        row, turns=max(row.turns, last + children), tokens=max(row.tokens, tokens), cost_usd=max(row.cost_usd, cost)
    )
