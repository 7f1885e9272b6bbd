"""The store that holds the runs of a workspace.

Reading runs needs no more than this; `runs` drives them and is not loaded for it.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from metier.definitions.names import PLUGIN
from metier.errors import UsageError
from metier.runtime.host import Host
from metier.runtime.records.run_folders import prepare_runs_folder
from metier.skills.git.clones import is_tracked
from metier.skills.trust.workspace_trust import knows_file, note_file
from metier.store.backend import DATABASE, open_store
from metier.store.base import RUNNABLE, RunRow, Store
from metier.store.failures import StoreUnavailable


async def open_place_store(place: Host) -> Store:
    """The store of the settings, which may be one of a plugin. Raises `StoreUnavailable` when it cannot serve."""
    options = place.settings.store
    if not options.backend.startswith(PLUGIN):
        return await open_store(options, runs=place.runs, environ=place.environ, clock=place.clock)
    # Plugins are loaded only where one of them brings the store.
    from metier.runtime.workspace.plugins import find_plugins, get_brought

    registries = place.plugins or find_plugins(place).registries
    opening = get_brought(options.backend, [each.stores for each in registries], kind="store", failure=StoreUnavailable)
    return await opening(place.environ.get(options.database_url_env, ""))


def check_runs(place: Host) -> bool:
    """True where the database of runs is still to be made, and `note_runs` to be called then.

    What a run is pinned to is not judged again when it is resumed: settings, policy, approvals. Raises
    `UsageError` for runs that came with a clone.
    """
    database = place.runs / DATABASE
    is_inside = database.resolve().is_relative_to(place.workspace.resolve()) or database.is_relative_to(place.workspace)
    if place.trust.is_trusted or place.settings.store.backend != "sqlite" or not is_inside:
        return False
    if not database.exists():
        return True
    if is_tracked(database) or not knows_file(database, home=place.home):
        raise UsageError(
            f"The runs in {str(place.runs)!r} may have come with this folder, which you have not trusted "
            f"({place.trust.origin})",
            hint="Read what the folder brings, then run `agent trust`; or move the runs away",
        )
    return False


def note_runs(place: Host) -> None:
    note_file(place.runs / DATABASE, home=place.home)


@asynccontextmanager
async def open_runs(place: Host) -> AsyncGenerator[Store]:
    """The store with the runs of a workspace, for as long as the block lasts. Raises `StoreUnavailable`."""
    try:
        prepare_runs_folder(place.runs)
    except OSError as error:
        raise StoreUnavailable(
            f"The runs folder {str(place.runs)!r} cannot be made: {error.strerror}",
            hint="Choose a folder that you may write to with `logging.jsonl_dir`",
        ) from error
    is_first = check_runs(place)
    store = await open_place_store(place)
    if is_first:
        note_runs(place)
    try:
        yield store
    finally:
        await store.close()


async def count_progress(row: RunRow, store: Store) -> RunRow:
    """The row with the turns, tokens and cost of its journal: the index has them since the run last came to rest."""
    if row.status not in RUNNABLE:
        return row
    turns, tokens, cost = 0, 0, 0.0
    for stored in await store.read_journal(row.run_id):
        if stored.kind not in ("model_call_started", "model_replied", "child_ended"):
            continue
        entry = cast("dict[str, Any]", json.loads(stored.data))  # written by `engine.entries`
        usage = entry["reply"]["usage"] if stored.kind == "model_replied" else entry
        turns = max(turns, entry["turn"]) if stored.kind == "model_call_started" else turns
        tokens += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        cost += entry.get("cost_usd", 0.0)
    # Capabilities and hooks of earlier drives may have spent more than models did.
    return replace(row, turns=max(row.turns, turns), tokens=max(row.tokens, tokens), cost_usd=max(row.cost_usd, cost))
