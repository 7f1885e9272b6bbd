"""Delegating runs in the queue: the driver of a parent also completes its child, despite kills."""

import signal
from pathlib import Path
from typing import Literal

import pytest
from worker_fleet import is_all, leave_runs, read_pause, wait_for_rows

from metier.engine.entries.task import ChildRequested
from metier.engine.journal import read_entries
from metier.ids import CHILD
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import WorkerOptions
from metier.store.base import RunRow
from services.redis_server import RedisServer
from services.worker_load import Crew, Load, build_host, count_sent

QUICK = WorkerOptions(concurrency=2, lease_seconds=60, sweep_seconds=0.5, turns_per_task=3)

type Way = Literal["claimed", "celery"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("way", ["claimed", "celery"]),
    pytest.mark.slow,
]


@pytest.fixture
def load(tmp_path: Path, redis_server: RedisServer, way: Way) -> Load:
    url = redis_server.url if way == "celery" else ""
    return Load(folder=str(tmp_path), steps=6, reply_seconds=0.02, delegates=True, broker_url=url, worker=QUICK)


def find_child(rows: list[RunRow]) -> RunRow | None:
    return next((row for row in rows if row.run_id.startswith(CHILD)), None)


async def wait_for_child(runtime: Runtime, load: Load) -> None:
    """Wait until the child run is in progress and had an effect."""

    def is_at_work(rows: list[RunRow]) -> bool:
        child = find_child(rows)
        return child is not None and bool(child.driver) and bool(count_sent(load))

    assert is_at_work(await wait_for_rows(runtime, is_at_work, seconds=200))


async def check_done(runtime: Runtime, load: Load, parent: str) -> None:
    rows = await wait_for_rows(runtime, is_all("completed"), seconds=120, load=load)
    assert [(row.status, row.parent_run_id) for row in rows] == [("completed", parent), ("completed", "")]
    ordered = [entry for entry in await read_entries(runtime.store, parent) if isinstance(entry, ChildRequested)]
    assert len(ordered) == 1
    sent = count_sent(load)
    assert (len(sent), set(sent.values())) == (3, {1})
    assert len(list((load.effects / "kept").iterdir())) == 3
    assert not (load.effects / "together").exists()


async def test_a_run_that_delegates_completes_with_its_child(load: Load, crew: Crew) -> None:
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        crew.start(load)

        await check_done(runtime, load, run_id)


async def test_a_worker_killed_during_a_delegation_is_replaced(load: Load, crew: Crew) -> None:
    load = load.model_copy(update={"reply_seconds": 0.4})
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        first = crew.start(load)
        await wait_for_child(runtime, load)

        crew.signal(first, signal.SIGKILL)
        crew.start(load)

        await check_done(runtime, load, run_id)


async def test_a_worker_stopped_during_a_delegation_releases_both_runs(load: Load, crew: Crew) -> None:
    load = load.model_copy(update={"reply_seconds": 0.4})
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        first = crew.start(load)
        await wait_for_child(runtime, load)

        crew.signal(first, signal.SIGTERM, whole_group=False)
        await wait_for_rows(runtime, lambda _rows: crew.count_left() == 0, seconds=200)
        rows = await runtime.store.list_runs()
        assert [row.driver for row in rows] == ["", ""]
        assert len(count_sent(load)) < 3
        crew.start(load)

        await check_done(runtime, load, run_id)


async def test_a_child_run_that_killed_two_workers_is_paused_until_its_parent_is_resumed(
    load: Load, crew: Crew
) -> None:
    load = load.model_copy(update={"poisoned": True})
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        workers = [crew.start(load) for _ in range(3)]  # without a broker the whole worker dies with the step

        def is_paused(rows: list[RunRow]) -> bool:
            child = find_child(rows)
            return child is not None and child.status == "paused" and not any(row.driver for row in rows)

        rows = await wait_for_rows(runtime, is_paused, seconds=200)

        child = find_child(rows)
        assert child is not None
        assert "2 processes in a row died" in await read_pause(runtime, child.run_id)
        # A worker that is left checks from time to time whether the parent can continue, and holds its lease meanwhile.
        for worker in workers:
            crew.signal(worker, signal.SIGTERM, whole_group=False)
        await wait_for_rows(
            runtime, lambda rows: crew.count_left() == 0 and not any(row.driver for row in rows), seconds=200
        )
    async with open_runtime(build_host(load.model_copy(update={"poisoned": False}))) as runtime:
        assert (await runtime.resume(run_id)).status == "completed"
