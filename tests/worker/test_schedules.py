"""Schedules fire once per due time, for any process, kill and clock jump."""

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from schedule_fleet import build_host, set_clock

from metier.definitions.schedule import build_schedule
from metier.runtime.queue.scheduler import add_schedule
from metier.runtime.runs import Runtime, open_runtime
from metier.store.base import ENDED
from metier.store.schedules import Firing

BEGIN = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
SCHEDULES = 10
ROUNDS = int(os.environ.get("METIER_SCHEDULE_ROUNDS", "3"))
"""20 for the whole size, 200 due times; 40 for the same on PostgreSQL."""

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(max(600, 60 * ROUNDS)), pytest.mark.slow]


def start_fleet(folder: Path) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("schedule_fleet.py")
    return subprocess.Popen([sys.executable, program, folder], start_new_session=True)


async def read_firings(runtime: Runtime) -> list[Firing]:
    return await runtime.store.schedules.list_firings("agent", limit=100_000)


async def wait_until_started(runtime: Runtime, due_at: datetime) -> None:
    """Wait until every schedule has a run for the due time, then end these runs to avoid overlap."""
    with anyio.fail_after(90):
        while True:
            found = [firing for firing in await read_firings(runtime) if firing.due_at == due_at]
            if len(found) == SCHEDULES and all(firing.outcome == "started" for firing in found):
                break
            await anyio.sleep(0.2)
    for firing in found:
        row = await runtime.store.find_run(firing.run_id)
        assert row is not None
        lease = None
        with anyio.fail_after(60):
            while lease is None:
                claimed = await runtime.store.claim_run(queue="agent", owner="test", seconds=60)
                lease = claimed or lease
                await anyio.sleep(0 if claimed else 0.02)
        await runtime.store.update_run(lease, {"status": "completed"})
        await runtime.store.release_lease(lease)


async def test_due_times_are_fired_once_despite_kills_and_a_jumping_clock(
    tmp_path: Path,
) -> None:
    await check_due_times(tmp_path, ROUNDS)


async def test_due_times_are_fired_once_each_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "database").write_text(postgres_url, encoding="utf-8")

    await check_due_times(tmp_path, max(3, ROUNDS // 2))


async def check_due_times(tmp_path: Path, rounds: int) -> None:
    """Kill two processes around due times while the clock jumps an hour: each due time starts one run."""
    set_clock(tmp_path, BEGIN)
    async with open_runtime(build_host(tmp_path)) as runtime:
        for number in range(SCHEDULES):
            values = {"name": f"s{number}", "every": "60s", "prompt": "go", "missed": "skip"}
            await add_schedule(runtime, build_schedule(values))
        fleet = start_fleet(tmp_path)
        try:
            wanted: list[datetime] = []
            now = BEGIN
            for number in range(rounds):
                if number == rounds // 2:
                    # An hour back, for long enough to be noticed, then an hour further than it was.
                    set_clock(tmp_path, now - timedelta(hours=1))
                    await anyio.sleep(0.2)
                    now += timedelta(hours=1)
                now += timedelta(seconds=60)
                set_clock(tmp_path, now + timedelta(seconds=1))
                wanted.append(now)
                await wait_until_started(runtime, now)
        finally:
            os.killpg(fleet.pid, signal.SIGKILL)
            fleet.wait()

        firings = await read_firings(runtime)
        runs = await runtime.store.list_runs(limit=10_000)

    started = [firing for firing in firings if firing.outcome == "started"]
    assert Counter(firing.due_at for firing in started) == dict.fromkeys(wanted, SCHEDULES)
    assert sorted(firing.run_id for firing in started) == sorted(run.run_id for run in runs)
    assert len({(firing.name, firing.due_at) for firing in firings}) == len(firings)
    # The hour that the clock left out was missed, each minute of it on record once.
    assert {firing.outcome for firing in firings} == {"started", "missed"}
    assert len(firings) == SCHEDULES * (rounds + 60)
    assert all(run.status in ENDED for run in runs)
    assert (tmp_path / "deaths").read_text(encoding="ascii")
