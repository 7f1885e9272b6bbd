"""Two machines that share only PostgreSQL: each has its own folders, and the worker is on the other one."""

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from worker_fleet import is_all, leave_runs, wait_for_rows

from metier.events.record import parse_record
from metier.runtime.runs import open_runtime
from metier.settings.sections import WorkerOptions
from services.worker_load import Crew, Load, build_host, count_sent

QUICK = WorkerOptions(concurrency=2, lease_seconds=6, sweep_seconds=0.5, turns_per_task=20)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def build_machines(folder: Path, url: str, *, reply_seconds: float) -> tuple[Load, Load]:
    """Build the machine of the user and that of the worker."""
    load = Load(folder=str(folder / "here"), steps=4, reply_seconds=reply_seconds, database_url=url, worker=QUICK)
    return load, load.model_copy(update={"folder": str(folder / "there")})


AGENT = str(Path(sys.executable).with_name("agent"))


def build_environ(load: Load) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
    return {**environ, "HOME": load.folder, "STATE_STORE_BACKEND": "postgres", "DATABASE_URL": load.database_url}


async def type_in(load: Load, *command: str) -> tuple[int, str, str]:
    """Run the `agent` command of a machine and return exit code and output."""
    done = await anyio.run_process([AGENT, *command], cwd=load.folder, env=build_environ(load), check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_a_cancellation_reaches_the_worker_of_another_machine(
    tmp_path: Path, crew: Crew, postgres_url: str
) -> None:
    here, there = build_machines(tmp_path, postgres_url, reply_seconds=600)
    async with open_runtime(build_host(here)) as runtime:
        (run_id,) = await leave_runs(runtime, here, 1)
        build_host(there)
        crew.start(there)
        await wait_for_rows(runtime, lambda rows: all(row.driver for row in rows), seconds=200)

        code, said, problems = await type_in(here, "runs", "cancel", run_id)

        assert (code, said) == (0, f"{run_id} is canceled\n"), problems
        rows = await wait_for_rows(runtime, lambda rows: not rows[0].driver, seconds=200)
        assert [(row.status, row.reason, row.driver) for row in rows] == [("canceled", "canceled", "")]


async def test_a_canceled_run_is_ended_by_the_next_process_that_claims_it(
    tmp_path: Path, crew: Crew, postgres_url: str
) -> None:
    here, there = build_machines(tmp_path, postgres_url, reply_seconds=600)
    async with open_runtime(build_host(here)) as runtime:
        (run_id,) = await leave_runs(runtime, here, 1)
        build_host(there)
        first = crew.start(there)
        await wait_for_rows(runtime, lambda rows: all(row.driver for row in rows), seconds=200)

        crew.signal(first, signal.SIGSTOP)  # it hears nothing any more
        state = await runtime.cancel(run_id, by="ann")
        assert state.status == "in_progress"
        crew.start(there)
        rows = await wait_for_rows(runtime, is_all("canceled"), seconds=200)

        assert [row.status for row in rows] == ["canceled"]
        assert (await runtime.read(run_id)).failure == (await runtime.cancel(run_id, by="bob")).failure
        assert count_sent(there) == {}


def find_told(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Return the events of a journal with the numbers of their entries."""
    records = [parse_record(line) for line in lines]
    return [(record.entry, record.event_type) for record in records if record.entry]


async def test_a_run_on_another_machine_can_be_watched(tmp_path: Path, crew: Crew, postgres_url: str) -> None:
    here, there = build_machines(tmp_path, postgres_url, reply_seconds=3.0)
    async with open_runtime(build_host(here)) as runtime:
        (run_id,) = await leave_runs(runtime, here, 1)
        build_host(there)
        text, seen_at_work = "", False

        async with await anyio.open_process(
            [AGENT, "runs", "watch", run_id, "--json"], cwd=here.folder, env=build_environ(here), stderr=None
        ) as watcher:
            assert watcher.stdout is not None
            async for piece in TextReceiveStream(watcher.stdout):
                if not text:
                    crew.start(there)  # somebody looks
                text += piece
                if "skill_step_executed" in text and not seen_at_work:
                    row = await runtime.store.find_run(run_id)
                    seen_at_work = row is not None and row.status == "in_progress"
            code = await watcher.wait()

        log = Path(there.folder) / "runs" / run_id / "events.jsonl"
        assert (code, seen_at_work) == (0, True)
        assert find_told(text.splitlines()) == find_told(log.read_text("utf-8").splitlines())
        assert len(find_told(text.splitlines())) > 10
