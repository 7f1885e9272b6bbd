"""The journal of a run, for what looks at all of it: comparison, fork points, backtests, following."""

from metier.engine.entries import Entry
from metier.engine.journal import read_entries
from metier.runtime.runs import Runtime


async def read_history(runtime: Runtime, run_id: str, *, after: int = 0) -> list[Entry]:
    """The entries of a run in order, those behind `after`. An unknown run has none."""
    return await read_entries(runtime.store, run_id, after=after)
