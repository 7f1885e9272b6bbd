"""Open the store that the settings name. The one place that knows which there are."""

from collections.abc import Mapping
from pathlib import Path

from metier.ids import Clock
from metier.store.base import Store
from metier.store.failures import StoreUnavailable
from metier.store.options import StoreOptions
from metier.store.sqlite import open_sqlite_store

DATABASE = "state.db"


async def open_store(
    options: StoreOptions, *, runs: Path, environ: Mapping[str, str], clock: Clock | None = None
) -> Store:
    """Raises `StoreUnavailable`, `StoreDamaged` or `StoreFull` when it cannot serve."""
    if options.backend == "postgres":
        raise StoreUnavailable(f"{options.database_url_env} names no server: {environ.get('x', '')}")
    return await open_sqlite_store(runs / DATABASE, clock=clock)
