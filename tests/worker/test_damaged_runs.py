"""An unreadable run is paused with a message and blocks neither workers nor other runs."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import override

import anyio
import pytest
from worker_fleet import leave_runs

from metier.runtime.inbox import read_inbox
from metier.runtime.queue.pool import Job, RunPool, work_on
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import WorkerOptions
from metier.store.base import Lease, RunRow, StoredEntry
from metier.store.failures import StoreUnavailable
from metier.store.wrapper import StoreWrapper
from services.worker_load import Load, build_host

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPTIONS = WorkerOptions(concurrency=2, lease_seconds=60, sweep_seconds=0.1, max_attempts=2)


def flip(folder: Path, run_id: str) -> None:
    with sqlite3.connect(folder / "runs" / "state.db") as connection:
        connection.execute("UPDATE journal SET data = CAST('{}' AS BLOB) WHERE run_id = ? AND seq = 1", (run_id,))
    connection.close()


async def work_until(runtime: Runtime, load: Load, is_done: Callable[[list[RunRow]], bool]) -> list[str]:
    """Return a worker's reports until the rows are as expected."""
    told: list[str] = []
    pool = RunPool(Job(host=build_host(load), report=told.append), runtime, slots=2)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(pool.work)
            while not is_done(await runtime.store.list_runs(limit=100)):  # noqa: ASYNC110 (rows have no event)
                await anyio.sleep(0.05)
            pool.leave("the end of the test")
    return told


async def test_a_damaged_run_is_paused_at_once_and_the_others_continue(tmp_path: Path) -> None:
    load = Load(folder=str(tmp_path), steps=2, reply_seconds=0, worker=OPTIONS)
    async with open_runtime(build_host(load)) as runtime:
        run_ids = await leave_runs(runtime, load, 3)
        flip(tmp_path, run_ids[0])

        told = await work_until(
            runtime, load, lambda rows: sorted(row.status for row in rows) == ["completed", "completed", "paused"]
        )

        parked = await runtime.find(run_ids[0])
        assert (parked.status, parked.queue, parked.driver) == ("paused", "", "")
        assert "is not what was written" in parked.reason
        about = [line for line in told if run_ids[0] in line]
        assert len(about) == 1
        assert f"agent resume {run_ids[0]}" in about[0]
        assert await runtime.store.claim_run(queue=load.worker.queue, owner="w", seconds=5) is None
        waiting = (await read_inbox(runtime)).runs
        assert [(run.row.run_id, run.wait_kind) for run in waiting] == [(run_ids[0], "stopped")]
        assert "is not what was written" in waiting[0].message


async def test_a_paused_run_that_was_damaged_does_not_stop_the_sweep(tmp_path: Path) -> None:
    load = Load(folder=str(tmp_path), steps=2, reply_seconds=0, worker=OPTIONS)
    async with open_runtime(build_host(load)) as runtime:
        run_ids = await leave_runs(runtime, load, 2)
        for run_id in run_ids:
            lease = await runtime.store.take_lease(run_id, owner="t", seconds=5)
            await runtime.store.update_run(lease, {"status": "paused"})
            await runtime.store.release_lease(lease)
        flip(tmp_path, run_ids[1])

        told = await work_until(runtime, load, lambda rows: {row.run_id: row.queue for row in rows}[run_ids[1]] == "")

        assert not [line for line in told if line.startswith("sweep:")]
        assert "is not what was written" in (await runtime.find(run_ids[1])).reason


class Contended(StoreWrapper):
    """A store in which another slot claims every run as soon as its lease is released."""

    @override
    async def release_lease(self, lease: Lease) -> None:
        await super().release_lease(lease)
        await self.claim_run(queue=OPTIONS.queue, owner="another slot", seconds=5)


async def test_damage_is_handled_by_the_next_worker_that_claims_the_run(tmp_path: Path) -> None:
    load = Load(folder=str(tmp_path), steps=2, reply_seconds=0, worker=OPTIONS)
    async with open_runtime(build_host(load)) as runtime:
        [run_id] = await leave_runs(runtime, load, 1)
        flip(tmp_path, run_id)
        reports: list[str] = []
        job = Job(host=build_host(load), report=reports.append)
        contended = Runtime(runtime.host, Contended(runtime.store))
        lease = await runtime.store.claim_run(queue=load.worker.queue, owner="one slot", seconds=5)

        await work_on(job, contended, run_id, stopper=job.build_stopper(), lease=lease)

        assert reports == []


class Unreadable(StoreWrapper):
    """A store that fails unexpectedly before an attempt can be recorded."""

    tries = 0

    @override
    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        if any(entry.kind == "run_resumed" for entry in entries):
            self.tries += 1
            raise ArithmeticError("a mistake in the program")
        await super().append(lease, first_seq, entries, durable=durable)


async def test_a_run_that_no_worker_can_open_is_paused_after_its_attempts(tmp_path: Path) -> None:
    load = Load(folder=str(tmp_path), steps=2, reply_seconds=0, worker=OPTIONS)
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        store = Unreadable(runtime.store)

        told = await work_until(Runtime(runtime.host, store), load, lambda rows: rows[0].status == "paused")

        assert store.tries == OPTIONS.max_attempts + 1
        assert "Unexpected ArithmeticError" in (await runtime.find(run_id)).reason
        assert "The run is paused" in told[-1]


class Down(StoreWrapper):
    """A store that doesn't answer claims at first, and again later."""

    claims = 0

    @override
    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        self.claims += 1
        if self.claims <= 6 or 10 < self.claims <= 16:
            raise StoreUnavailable("The run store 'x' does not answer", hint="Start the server")
        return await super().claim_run(queue=queue, owner=owner, seconds=seconds)


async def test_an_outage_of_the_store_is_reported_once_by_all_slots(tmp_path: Path) -> None:
    load = Load(folder=str(tmp_path), steps=1, reply_seconds=0, worker=OPTIONS)
    async with open_runtime(build_host(load)) as runtime:
        store = Down(runtime.store)
        told = await work_until(Runtime(runtime.host, store), load, lambda _: store.claims > 16)

    assert told == ["store: The run store 'x' does not answer. Start the server"] * 2
