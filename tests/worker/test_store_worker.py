"""Workers without a broker: they claim runs from the store, on SQLite as on PostgreSQL."""

import signal
from pathlib import Path

import pytest
from worker_fleet import is_all, leave_runs, wait_for_rows

from metier.runtime.runs import open_runtime
from metier.settings.worker_options import WorkerOptions
from services.worker_load import Crew, Load, build_place, count_sent

QUICK = WorkerOptions(concurrency=3, lease_seconds=3, sweep_seconds=0.5, turns_per_task=3)

pytestmark = pytest.mark.anyio


async def drive_through_a_kill(load: Load, crew: Crew) -> None:
    async with open_runtime(build_place(load)) as runtime:
        await leave_runs(runtime, load, 6)
        workers = [crew.start(load) for _ in range(2)]
        await wait_for_rows(runtime, lambda rows: any(row.turns for row in rows), seconds=60)
        crew.signal(workers[0], signal.SIGKILL)

        rows = await wait_for_rows(runtime, is_all("completed"), seconds=100, load=load)

        assert [row.status for row in rows] == ["completed"] * 6
        sent = count_sent(load)
        assert (len(sent), set(sent.values())) == (18, {1})
        assert len(list((load.effects / "kept").iterdir())) == 18
        assert not (load.effects / "together").exists()


async def test_two_workers_on_sqlite_share_the_runs_and_one_may_die(tmp_path: Path, crew: Crew) -> None:
    await drive_through_a_kill(Load(folder=str(tmp_path), steps=6, reply_seconds=0.05, worker=QUICK), crew)


async def test_two_workers_on_postgresql_share_the_runs_and_one_may_die(
    tmp_path: Path, crew: Crew, postgres_url: str
) -> None:
    load = Load(folder=str(tmp_path), steps=6, reply_seconds=0.05, worker=QUICK, database_url=postgres_url)
    await drive_through_a_kill(load, crew)


async def test_a_run_that_kills_its_workers_fails_after_its_tries(tmp_path: Path, crew: Crew) -> None:
    options = QUICK.model_copy(update={"max_attempts": 2})
    load = Load(folder=str(tmp_path), steps=6, reply_seconds=0.01, worker=options, poisoned=True)
    async with open_runtime(build_place(load)) as runtime:
        await leave_runs(runtime, load, 1)
        for _ in range(6):
            crew.start(load)

        rows = await wait_for_rows(runtime, is_all("failed"), seconds=60, load=load)

        assert [(row.status, row.reason) for row in rows] == [("failed", "too_many_attempts")]
