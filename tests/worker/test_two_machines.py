"""Two machines that share nothing but PostgreSQL: each has its own folders, and the worker is on the other one."""

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from worker_fleet import is_all, leave_runs, wait_for_rows

from metier.runtime.runs import open_runtime
from metier.settings.worker_options import WorkerOptions
from metier.testing.worker_load import Crew, Load, build_place, count_sent

QUICK = WorkerOptions(concurrency=2, lease_seconds=6, sweep_seconds=0.5, turns_per_task=20)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(200)]


def build_machines(folder: Path, url: str, *, reply_seconds: float) -> tuple[Load, Load]:
    """Here a person sits, there a worker works."""
    load = Load(folder=str(folder / "here"), steps=4, reply_seconds=reply_seconds, database_url=url, worker=QUICK)
    return load, load.model_copy(update={"folder": str(folder / "there")})


async def type_in(load: Load, *command: str) -> tuple[int, str, str]:
    """The `agent` command of a machine: its exit code and what it says."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
    done = await anyio.run_process(
        [str(Path(sys.executable).with_name("agent")), *command],
        cwd=load.folder,
        env={**environ, "HOME": load.folder, "STATE_STORE_BACKEND": "postgres", "DATABASE_URL": load.database_url},
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_a_cancellation_reaches_the_worker_of_another_machine(
    tmp_path: Path, crew: Crew, postgres_url: str
) -> None:
    here, there = build_machines(tmp_path, postgres_url, reply_seconds=600)
    async with open_runtime(build_place(here)) as runtime:
        (run_id,) = await leave_runs(runtime, here, 1)
        build_place(there)
        crew.start(there)
        await wait_for_rows(runtime, lambda rows: all(row.driver for row in rows), seconds=60)

        code, said, problems = await type_in(here, "runs", "cancel", run_id)

        assert (code, said) == (0, f"{run_id} is canceled\n"), problems
        rows = await wait_for_rows(runtime, lambda rows: not rows[0].driver, seconds=60)
        assert [(row.status, row.reason, row.driver) for row in rows] == [("canceled", "canceled", "")]


async def test_a_run_whose_end_was_wanted_is_ended_by_whoever_takes_it_next(
    tmp_path: Path, crew: Crew, postgres_url: str
) -> None:
    here, there = build_machines(tmp_path, postgres_url, reply_seconds=600)
    async with open_runtime(build_place(here)) as runtime:
        (run_id,) = await leave_runs(runtime, here, 1)
        build_place(there)
        first = crew.start(there)
        await wait_for_rows(runtime, lambda rows: all(row.driver for row in rows), seconds=60)

        crew.signal(first, signal.SIGSTOP)  # it hears nothing any more
        state = await runtime.cancel(run_id, by="ann")
        assert state.status == "in_progress"
        crew.start(there)
        rows = await wait_for_rows(runtime, is_all("canceled"), seconds=100)

        assert [row.status for row in rows] == ["canceled"]
        assert (await runtime.read(run_id)).failure == (await runtime.cancel(run_id, by="bob")).failure
        assert count_sent(there) == {}
