"""Open the runs of a workspace to read them. What drives them is in `runs`, and is not loaded for this."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from metier.runtime.host import Host
from metier.runtime.records.run_database import check_runs, note_runs
from metier.runtime.records.runs_folder import prepare_runs_folder
from metier.runtime.workspace.run_store import open_place_store
from metier.store.base import Store
from metier.store.failures import StoreUnavailable


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
