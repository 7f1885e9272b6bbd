"""Workers without a broker claim runs from the store, on SQLite and PostgreSQL."""

import signal
from pathlib import Path

import pytest
from worker_fleet import is_all, leave_runs, read_pause, wait_for_rows

from metier.runtime.runs import open_runtime
from metier.settings.sections import WorkerOptions
from metier.store.base import RunRow
from services.worker_load import Crew, Load, build_host, count_sent

QUICK = WorkerOptions(concurrency=3, lease_seconds=8, sweep_seconds=0.5, turns_per_task=3)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def drive_through_a_kill(load: Load, crew: Crew) -> None:
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 6)
        workers = [crew.start(load) for _ in range(2)]
        await wait_for_rows(runtime, lambda rows: any(row.turns for row in rows), seconds=200)
        crew.signal(workers[0], signal.SIGKILL)

        rows = await wait_for_rows(runtime, is_all("completed"), seconds=200, load=load)

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


async def pause_after_two_deaths(load: Load, crew: Crew) -> None:
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        for _ in range(3):
            crew.start(load)

        def is_left(rows: list[RunRow]) -> bool:
            return [(row.status, row.driver) for row in rows] == [("paused", "")]

        await wait_for_rows(runtime, is_left, seconds=200, load=load)

        reason = await read_pause(runtime, run_id)
        assert "2 processes in a row died driving the run at this point" in reason
        assert f"`agent resume {run_id}`" in reason
        assert await runtime.store.list_stale(queue=load.worker.queue) == []
    async with open_runtime(build_host(load.model_copy(update={"poisoned": False}))) as runtime:
        assert (await runtime.resume(run_id)).status == "completed"


async def test_a_run_that_killed_two_workers_is_paused_until_a_user_resumes_it(tmp_path: Path, crew: Crew) -> None:
    await pause_after_two_deaths(
        Load(folder=str(tmp_path), steps=6, reply_seconds=0.01, worker=QUICK, poisoned=True), crew
    )


async def test_a_run_that_killed_two_workers_on_postgresql_is_paused_until_a_user_resumes_it(
    tmp_path: Path, crew: Crew, postgres_url: str
) -> None:
    load = Load(
        folder=str(tmp_path), steps=6, reply_seconds=0.01, worker=QUICK, poisoned=True, database_url=postgres_url
    )
    await pause_after_two_deaths(load, crew)
