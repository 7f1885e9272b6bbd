"""Workers notified by a broker: the meaning of messages, and lost, poisonous and duplicate ones."""

import signal
import time
from pathlib import Path

import anyio
import pytest
from worker_fleet import is_all, leave_runs, read_pause, wait_for_rows

from metier.engine.entries.run import RunResumed
from metier.engine.journal import read_entries
from metier.errors import BrokerUnavailable, UsageError
from metier.runtime.queue.broker import find_address, name_recovery
from metier.runtime.queue.detached import submit
from metier.runtime.queue.wakeups import find_broker
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import WorkerOptions
from services.redis_server import RedisServer
from services.worker_load import Crew, Load, build_host, count_sent

QUICK = WorkerOptions(concurrency=2, lease_seconds=60, sweep_seconds=0.5, turns_per_task=3)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def build_load(folder: Path, server: RedisServer, **changes: object) -> Load:
    load = Load(folder=str(folder), steps=6, reply_seconds=0.01, broker_url=server.url, worker=QUICK)
    return load.model_copy(update=changes)


async def test_a_task_runs_limited_turns_and_the_next_one_continues(
    tmp_path: Path, crew: Crew, redis_server: RedisServer
) -> None:
    load = build_load(tmp_path, redis_server)
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        crew.start(load)

        rows = await wait_for_rows(runtime, is_all("completed"), seconds=200)

        assert [row.status for row in rows] == ["completed"]
        drivers = [entry.driver for entry in await read_entries(runtime.store, run_id) if isinstance(entry, RunResumed)]
        assert len(drivers) >= 3  # seven turns, three at a time


async def test_lost_messages_are_recovered(tmp_path: Path, crew: Crew, redis_server: RedisServer) -> None:
    load = build_load(tmp_path, redis_server)
    async with open_runtime(build_host(load)) as runtime:
        for _ in range(3):
            await submit(runtime, RunRequest(task="go"), queue=load.worker.queue)  # and nobody is told
        crew.start(load)

        rows = await wait_for_rows(runtime, is_all("completed"), seconds=200)

        assert [row.status for row in rows] == ["completed"] * 3


async def test_a_message_delivered_ten_times_starts_one_run(
    tmp_path: Path, crew: Crew, redis_server: RedisServer
) -> None:
    load = build_load(tmp_path, redis_server)
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        broker = find_broker(load.worker, runtime.host.environ)
        assert broker is not None
        broker.wake([run_id] * 10, queue=load.worker.queue)
        for _ in range(2):
            crew.start(load)

        await wait_for_rows(runtime, is_all("completed"), seconds=200)
        deadline = time.monotonic() + 60
        while broker.count_waiting(load.worker.queue) and time.monotonic() < deadline:  # noqa: ASYNC110
            await anyio.sleep(0.1)

        assert broker.count_waiting(load.worker.queue) == 0
        broker.close()
        assert sorted(count_sent(load).values()) == [1, 1, 1]
        assert not (load.effects / "together").exists()


async def test_a_run_that_killed_two_workers_is_paused(tmp_path: Path, crew: Crew, redis_server: RedisServer) -> None:
    """The step is repeatable and ends its process; the broker's delivery count is not used."""
    options = QUICK.model_copy(update={"max_attempts": 3})
    load = build_load(tmp_path, redis_server, poisoned=True, worker=options)
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 1)
        crew.start(load)

        rows = await wait_for_rows(runtime, is_all("paused"), seconds=200)

        assert "2 processes in a row died" in await read_pause(runtime, rows[0].run_id)


async def test_a_run_over_its_time_limit_ends_as_timeout(tmp_path: Path, crew: Crew, redis_server: RedisServer) -> None:
    options = QUICK.model_copy(update={"timeout_seconds": 1.0})
    load = build_load(tmp_path, redis_server, reply_seconds=30.0, worker=options)
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 1)
        crew.start(load)

        rows = await wait_for_rows(runtime, is_all("timeout"), seconds=200)

        assert [(row.status, row.reason) for row in rows] == [("timeout", "run_timeout")]


@pytest.mark.parametrize("hang", ["model", "shielded", "blocking", "deaf"])
async def test_a_step_that_ignores_its_timeout_is_killed_with_all_its_processes(
    *, tmp_path: Path, crew: Crew, redis_server: RedisServer, hang: str
) -> None:
    """The run's own limit has no effect on it; an exception some seconds later or the end of its process does."""
    options = QUICK.model_copy(update={"timeout_seconds": 1.0, "lease_seconds": 300.0})
    load = build_load(tmp_path, redis_server, hang=hang, worker=options)
    async with open_runtime(build_host(load)) as runtime:
        (run_id,) = await leave_runs(runtime, load, 1)
        crew.start(load)

        rows = await wait_for_rows(runtime, is_all("timeout"), seconds=200)
        await wait_for_rows(runtime, lambda _rows: not find_left(load), seconds=200)

        assert [(row.status, row.reason) for row in rows] == [("timeout", "run_timeout")]
        assert find_left(load) == []
        assert (await runtime.read(run_id)).attempts <= 2
        assert crew.count_left() == 1


def find_left(load: Load) -> list[str]:
    """Return the remaining processes of a step."""
    file = load.effects / "pids"
    pids = file.read_text("utf-8").split() if file.exists() else []
    return [pid for pid in pids if Path("/proc", pid).exists()]


async def test_a_stopped_worker_releases_its_runs_and_leaves_no_processes(
    tmp_path: Path, crew: Crew, redis_server: RedisServer
) -> None:
    load = build_load(tmp_path, redis_server, reply_seconds=0.3)
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 2)
        first = crew.start(load)
        await wait_for_rows(runtime, lambda rows: all(row.driver for row in rows), seconds=200)

        crew.signal(first, signal.SIGTERM, whole_group=False)
        await wait_for_rows(runtime, lambda _rows: crew.count_left() == 0, seconds=200)
        rows = await runtime.store.list_runs()

        assert crew.count_left() == 0
        assert [(row.status, row.driver) for row in rows] == [("in_progress", "")] * 2
        crew.start(load)
        rows = await wait_for_rows(runtime, is_all("completed"), seconds=200)
        assert [row.status for row in rows] == ["completed"] * 2
        assert set(count_sent(load).values()) == {1}


async def test_other_processes_end_if_the_first_one_is_killed(
    tmp_path: Path, crew: Crew, redis_server: RedisServer
) -> None:
    load = build_load(tmp_path, redis_server, reply_seconds=0.3)
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 1)
        first = crew.start(load)
        await wait_for_rows(runtime, lambda rows: all(row.driver for row in rows), seconds=200)

        crew.signal(first, signal.SIGKILL, whole_group=False)
        await wait_for_rows(runtime, lambda _rows: crew.count_left() == 0, seconds=200)

        assert crew.count_left() == 0


async def test_an_unreachable_broker_is_named_without_its_password(tmp_path: Path) -> None:
    password = "hunter" + "22-broker"
    environ = {"CELERY_BROKER_URL": f"redis://:{password}@127.0.0.1:1/0"}
    broker = find_broker(WorkerOptions(), environ)
    assert broker is not None

    for call in (lambda: broker.wake(["r"], queue="q"), lambda: broker.count_waiting("q")):
        with pytest.raises(BrokerUnavailable) as caught:
            call()
        assert "127.0.0.1:1" in caught.value.message
        assert password not in caught.value.sentence
    broker.close()


async def test_urls_of_unreliable_brokers_are_rejected() -> None:
    for url in ("sqla+postgresql://host/db", "filesystem://", "nonsense"):
        with pytest.raises(UsageError):
            find_address(WorkerOptions(), {"CELERY_BROKER_URL": url})
    own = find_address(WorkerOptions(), {"CELERY_BROKER_URL": "redis://b", "AGENT_WORKER_BROKER_URL": "amqp://a//"})
    assert own is not None
    assert (own.shown, own.is_redis) == ("amqp://a//", False)
    assert name_recovery("q") == "q.recover"
