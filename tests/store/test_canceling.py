"""A canceled task either wrote nothing, or its call returns normally."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from metier.store.sqlite.store import SqliteStore
from metier.testing.store_case import build_entries, build_run

type Open = Callable[[], Awaitable[SqliteStore]]


@pytest.mark.anyio
async def test_an_append_canceled_before_it_started_writes_nothing(open_store: Open) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.append(lease, 1, build_entries(1))

    assert await store.read_journal("r1") == []
    await store.close()


@pytest.mark.anyio
async def test_an_append_canceled_after_its_commit_returns(open_store: Open) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    returned: list[int] = []

    async def append(seq: int) -> None:
        await store.append(lease, seq, build_entries(seq))
        returned.append(seq)

    for seq in range(1, 31):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, seq)
            while len(await store.read_journal("r1", after=seq - 1)) == 0:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    assert returned == list(range(1, 31))
    await store.close()
