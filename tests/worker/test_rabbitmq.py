"""Workers notified by RabbitMQ. If a test disables the sweep, only the broker can redeliver a message."""

import signal
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from worker_fleet import is_all, leave_runs, read_pause, wait_for_rows

from metier.errors import BrokerUnavailable
from metier.runtime.queue.wakeups import find_broker
from metier.runtime.runs import open_runtime
from metier.settings.sections import WorkerOptions
from metier.store.base import RunRow
from services.rabbitmq_server import RabbitServer, find_rabbitmq, run_rabbitmq
from services.worker_load import Crew, Load, build_host, count_sent

NEVER_SECONDS = 3600.0

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(find_rabbitmq() is None, reason="rabbitmq-server is not installed here"),
    pytest.mark.slow,
]


def build_load(folder: Path, server: RabbitServer, **changes: object) -> Load:
    worker = {"queue": f"q{uuid4().hex}", "concurrency": 2, "lease_seconds": 60, "turns_per_task": 3, **changes}
    options = WorkerOptions.model_validate({"sweep_seconds": NEVER_SECONDS, **worker})
    return Load(folder=str(folder), steps=6, reply_seconds=0.01, broker_url=server.url, worker=options)


async def test_runs_queued_in_rabbitmq_complete_by_messages_alone(
    tmp_path: Path, crew: Crew, rabbit_server: RabbitServer
) -> None:
    load = build_load(tmp_path, rabbit_server)
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 4)  # nobody has made the queue yet
        for _ in range(2):
            crew.start(load)

        rows = await wait_for_rows(runtime, is_all("completed"), seconds=120)

        assert [row.status for row in rows] == ["completed"] * 4
        sent = count_sent(load)
        assert (len(sent), set(sent.values())) == (12, {1})
        assert not (load.effects / "together").exists()


async def test_messages_of_a_killed_worker_are_redelivered_and_its_runs_complete(
    tmp_path: Path, crew: Crew, rabbit_server: RabbitServer
) -> None:
    load = build_load(tmp_path, rabbit_server).model_copy(update={"reply_seconds": 0.3})
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 2)
        first = crew.start(load)
        await wait_for_rows(runtime, lambda rows: all(row.driver for row in rows), seconds=120)

        crew.signal(first, signal.SIGKILL)
        left = await wait_for_rows(runtime, lambda rows: all(row.left_by for row in rows), seconds=120)
        crew.start(load)
        rows = await wait_for_rows(runtime, is_all("completed"), seconds=120, load=load)

        assert [bool(row.left_by) for row in left] == [True, True]  # in the middle of both
        assert [row.status for row in rows] == ["completed"] * 2
        sent = count_sent(load)
        assert (len(sent), set(sent.values())) == (6, {1})


async def test_a_run_that_killed_two_workers_is_paused(tmp_path: Path, crew: Crew, rabbit_server: RabbitServer) -> None:
    load = build_load(tmp_path, rabbit_server, max_attempts=3).model_copy(update={"poisoned": True})
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 1)
        crew.start(load)

        rows = await wait_for_rows(runtime, is_all("paused"), seconds=120)

        assert "2 processes in a row died" in await read_pause(runtime, rows[0].run_id)
        broker = find_broker(load.worker, runtime.host.environ)
        assert broker is not None
        assert broker.count_waiting(load.worker.queue) == 0
        broker.close()


async def test_a_killed_and_restarted_node_loses_no_run(
    tmp_path: Path, crew: Crew, rabbit_server: RabbitServer
) -> None:
    load = build_load(tmp_path, rabbit_server, sweep_seconds=1).model_copy(update={"reply_seconds": 0.3})
    async with open_runtime(build_host(load)) as runtime:
        await leave_runs(runtime, load, 4)
        crew.start(load)
        await wait_for_rows(runtime, lambda rows: any(row.turns for row in rows), seconds=120)

        rabbit_server.restart(is_immediate=True)
        rows = await wait_for_rows(runtime, is_all("completed"), seconds=120)

        assert [row.status for row in rows] == ["completed"] * 4
        assert set(count_sent(load).values()) == {1}


async def test_a_run_longer_than_the_rabbitmq_ack_timeout_ends_once_and_the_worker_stays(
    tmp_path: Path, crew: Crew
) -> None:
    """An unacknowledged message closes its channel after a timeout, half an hour by default."""
    with run_rabbitmq({"consumer_timeout": 1000, "channel_tick_interval": 500}) as server:
        load = build_load(tmp_path, server, turns_per_task=100).model_copy(update={"reply_seconds": 1.0})
        async with open_runtime(build_host(load)) as runtime:
            await leave_runs(runtime, load, 1)
            worker = crew.start(load)

            rows = await wait_for_rows(runtime, is_all("completed"), seconds=120)

            assert [row.status for row in rows] == ["completed"]
            assert sorted(count_sent(load).values()) == [1, 1, 1]
            assert not (load.effects / "together").exists()
            log = "\n".join(path.read_text("utf-8") for path in (server.folder / "log").glob("*.log"))
            assert "delivery acknowledgement" in log  # the channel was closed
            assert crew.count_left() == 1
            await leave_runs(runtime, load.model_copy(update={"steps": 0}), 1)
            rows = await wait_for_rows(runtime, _are(2), seconds=120)
            assert [row.status for row in rows] == ["completed"] * 2
            crew.signal(worker, signal.SIGTERM, whole_group=False)
            await wait_for_rows(runtime, lambda _rows: crew.count_left() == 0, seconds=200)
            assert crew.count_left() == 0


async def test_a_wrong_password_is_reported_without_showing_it(rabbit_server: RabbitServer) -> None:
    password = "hunter" + "22-rabbit"
    url = f"amqp://guest:{password}@127.0.0.1:{rabbit_server.port}//"
    broker = find_broker(WorkerOptions(), {"CELERY_BROKER_URL": url})
    assert broker is not None

    for call in (lambda: broker.wake(["r"], queue="q"), lambda: broker.count_waiting("q")):
        with pytest.raises(BrokerUnavailable) as caught:
            call()
        assert str(rabbit_server.port) in caught.value.message
        assert password not in caught.value.sentence
    broker.close()


def _are(count: int) -> Callable[[list[RunRow]], bool]:
    def judge(rows: list[RunRow]) -> bool:
        return len(rows) == count and all(row.status == "completed" for row in rows)

    return judge
