"""What can end a run from outside while it is driven: its time limit, and a requested cancellation.

The request may come from another machine, so it goes through the store.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
from pydantic import ValidationError

from metier.engine.entries import RunFailed, RunPaused
from metier.engine.stopping import Stopper
from metier.errors import StoreError
from metier.store.base import Store

LOOK_SECONDS = 0.5
"""How often a driver looks for a request to end the run: one row by its key."""
MOST_LOOKS = 400
"""That a process takes in a second for all its runs; 2,000 runs that wait would else keep half a core busy."""
_driven: set[object] = set()
"""One mark for each run that this process drives now."""


@asynccontextmanager
async def bounded(
    stopper: Stopper, store: Store, run_id: str, *, timeout_seconds: float | None, parks: bool = False
) -> AsyncGenerator[None]:
    """Inside this block the stopper is told of a requested end, or that time ran out; then the run fails or `parks`."""
    async with anyio.create_task_group() as group:
        group.start_soon(_obey, stopper, store, run_id)
        if timeout_seconds is not None:
            group.start_soon(_end_in_time, stopper, timeout_seconds, parks)
        yield
        group.cancel_scope.cancel()


async def ask_to_end(store: Store, run_id: str, failure: RunFailed) -> None:
    """Ask the present or next driver of the run to end it with this failure."""
    await store.ask_to_end(run_id, failure.model_dump_json())


async def find_wanted_end(store: Store, run_id: str) -> RunFailed | None:
    row = await store.find_run(run_id)
    if row is None or not row.ending:
        return None
    try:
        return RunFailed.model_validate_json(row.ending)
    except ValidationError:  # a request of another version: that the run shall end is certain
        return build_cancellation("")


def build_cancellation(by: str) -> RunFailed:
    return RunFailed(reason="canceled", message=f"Canceled by {by}" if by else "Canceled", status="canceled")


def build_timeout(seconds: float) -> RunFailed:
    return RunFailed(reason="run_timeout", message=f"The run took longer than {seconds:g} s", status="timeout")


def find_pause(runs: int) -> float:
    """Seconds between two looks for one run, where a process drives so many."""
    return max(LOOK_SECONDS, runs / MOST_LOOKS)


async def _obey(stopper: Stopper, store: Store, run_id: str) -> None:
    mark = object()
    _driven.add(mark)
    try:
        while True:
            # Where the store is away, the run itself finds out, and is told once.
            with suppress(StoreError):
                if (failure := await find_wanted_end(store, run_id)) is not None:
                    stopper.fail(failure)
                    return
            await anyio.sleep(find_pause(len(_driven)))
    finally:
        _driven.discard(mark)


async def _end_in_time(stopper: Stopper, seconds: float, parks: bool) -> None:  # noqa: FBT001 - a task has no names
    await anyio.sleep(seconds)
    failure = build_timeout(seconds)
    if parks:
        stopper.park(RunPaused(pause="limit", limit="timeout_seconds", reason=failure.message))
    else:
        stopper.fail(failure)
