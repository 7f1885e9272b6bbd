"""Several and killed processes on one file: one winner, no acknowledged write is lost."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from metier.store.sqlite.store import open_sqlite_store
from metier.testing.store_case import build_run

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("store_child.py")
PROCESSES = 8
ROUNDS = 200


class Child:
    """A real process that works on the store."""

    def __init__(self, *arguments: str | Path, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, sys.executable, str(CHILD), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, **command: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def hear_all(self) -> list[dict[str, Any]]:
        """Return all lines until the end, without a line truncated by the kill."""
        assert self.process.stdout is not None
        return [
            json.loads(line) for line in self.process.stdout.read().splitlines(keepends=True) if line.endswith("\n")
        ]

    def wait_until_it_is_a_zombie(self) -> None:
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()


@pytest.fixture(scope="module")
def shared_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "runs" / "state.db"


@pytest.fixture(scope="module")
def children(shared_database: Path) -> Iterator[list[Child]]:
    with ExitStack() as started:
        crowd: list[Child] = []
        for _ in range(PROCESSES):
            child = Child("commands", shared_database)
            started.callback(child.end)
            crowd.append(child)
        # All open, and so create, the database at the same time.
        assert [child.hear() for child in crowd] == [{"ready": True}] * PROCESSES
        yield crowd


@pytest.mark.anyio
async def test_exactly_one_of_eight_processes_acquires_a_run_in_every_round(
    children: list[Child], shared_database: Path
) -> None:
    store = await open_sqlite_store(shared_database)
    tokens: list[int] = []
    for number in range(ROUNDS):
        await store.create_run(build_run(f"r{number}"))
        for index, child in enumerate(children):
            child.tell(do="take", run=f"r{number}", owner=f"p{index}")
        answers = [child.hear() for child in children]

        winners = [answer["token"] for answer in answers if "token" in answer]
        assert len(winners) == 1
        assert [answer["failed"] for answer in answers if "failed" in answer] == ["LeaseHeld"] * (PROCESSES - 1)
        tokens += winners
    await store.close()

    assert tokens == sorted(set(tokens))


@pytest.mark.anyio
async def test_exactly_one_of_eight_concurrent_writes_succeeds_in_every_round(
    children: list[Child], shared_database: Path
) -> None:
    store = await open_sqlite_store(shared_database)
    await store.create_run(build_run("one"))
    lease = await store.take_lease("one", owner="all", seconds=600)
    winners: list[str] = []
    for seq in range(1, ROUNDS + 1):
        for index, child in enumerate(children):
            child.tell(do="append", run="one", owner="all", token=lease.token, seq=seq, text=f"p{index}")
        answers = [child.hear() for child in children]

        assert sorted(answer.get("failed", "") for answer in answers) == ["", *["SeqTaken"] * (PROCESSES - 1)]
        winners.append(f"p{next(index for index, answer in enumerate(answers) if 'seq' in answer)}")

    assert [entry.data.decode() for entry in await store.read_journal("one")] == winners
    await store.close()


@pytest.mark.anyio
async def test_no_acknowledged_append_is_lost_by_a_kill_between_appends(database: Path) -> None:
    store = await open_sqlite_store(database)
    await store.create_run(build_run("r1"))
    randomness = random.Random(7)
    total = 0
    for _ in range(15):
        child = Child("append", database, "r1")
        for _ in range(randomness.randint(1, 40)):
            child.hear()
        child.process.send_signal(signal.SIGKILL)
        acknowledged = max([answer["seq"] for answer in child.hear_all()], default=0)
        child.end()

        entries = await store.read_journal("r1")
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        assert all(entry.data == f"entry {entry.seq} ".encode() * 50 for entry in entries)
        assert len(entries) >= max(acknowledged, total + 1)
        total = len(entries)
    await store.close()


EARLY = range(1, 16) if os.environ.get("METIER_CRASH_ALL") else (*range(1, 7), 9, 12, 15)
POINTS = {"pwrite64": (*EARLY, 30, 60), "fdatasync": tuple(range(1, 6))}
"""Calls at which a process is killed."""


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", POINTS)
async def test_no_acknowledged_append_is_lost_by_a_kill_at_any_database_write(call: str, database: Path) -> None:
    points = POINTS[call]
    killed = 0
    for point in points:
        path = database.with_name(f"{call}-{point}.db")
        store = await open_sqlite_store(path)
        await store.create_run(build_run("r1"))
        inject = f"inject={call}:signal=SIGKILL:when={point}"
        child = Child("append", path, "r1", prefix=("strace", "-qq", "-f", "-o", "/dev/null", "-e", inject))
        answers = child.hear_all()
        child.process.wait()
        child.end()
        killed += child.process.returncode == -signal.SIGKILL

        entries = await store.read_journal("r1")
        acknowledged = max([answer["seq"] for answer in answers], default=0)
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        assert acknowledged <= len(entries) <= acknowledged + 1
        lease = await store.take_lease("r1", owner="next", seconds=60)
        assert lease.token >= 1
        await store.close()

    assert killed == len(points)


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether a process has ended")
async def test_a_run_of_a_killed_driver_can_be_driven_immediately(database: Path) -> None:
    store = await open_sqlite_store(database)
    await store.create_run(build_run("r1"))
    child = Child("append", database, "r1")
    child.hear()
    run = await store.find_run("r1")
    assert run is not None
    assert run.driver == "child"

    child.process.send_signal(signal.SIGKILL)
    child.wait_until_it_is_a_zombie()
    lease = await store.take_lease("r1", owner="next", seconds=60)

    assert lease.owner == "next"
    child.end()
    await store.close()
