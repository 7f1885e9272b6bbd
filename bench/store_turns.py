"""A run of 50 turns on PostgreSQL against the same run on SQLite: what the store adds to a turn."""

import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import psycopg

from bench.engine import Echo, Talker
from bench.table import Row
from metier.engine.options import RuntimeOptions
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.backend import StoreBackend, StoreOptions
from services.postgres_server import find_binaries, run_server

TURNS = 50
ROUNDS = 12


def rows() -> list[Row]:
    binaries = find_binaries()
    if binaries is None:
        return [Row("turn of 50, PostgreSQL / SQLite", "not measured: no server here", "<= 2 x", holds=False)]
    with run_server(binaries, is_synced=True) as server:
        return anyio.run(_measure, server.url())


async def _measure(url: str) -> list[Row]:
    talker = Talker(TURNS)
    best: dict[StoreBackend, float] = {"sqlite": float("inf"), "postgres": float("inf")}
    async with AsyncExitStack() as opened:
        runtimes: dict[StoreBackend, Runtime] = {}
        for backend in best:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            runtimes[backend] = await opened.enter_async_context(
                open_runtime(_host(folder, backend, url=url, talker=talker))
            )
        for _ in range(ROUNDS):  # in alternation, so that other load on the machine hits both
            for backend, runtime in runtimes.items():
                best[backend] = min(best[backend], await _time_run(runtime, talker))
        before = _count_commits(url)
        await _time_run(runtimes["postgres"], talker)
        commits = (_count_commits(url) - before - 1) / (TURNS + 1)
    ours, theirs = (1000 * best[backend] / (TURNS + 1) for backend in ("postgres", "sqlite"))
    ratio = ours / theirs
    return [
        Row("turn of 50, PostgreSQL / SQLite", f"{ratio:.2f} x ({ours:.2f} / {theirs:.2f} ms)", "<= 2 x", ratio <= 2),
        Row("commits per turn of 50 on PostgreSQL", f"{commits:.1f}", "<= 4.5", commits <= 4.5),
    ]


async def _time_run(runtime: Runtime, talker: Talker) -> float:
    talker.marks.clear()
    began = time.perf_counter()
    state = await runtime.start(RunRequest(task="talk for a while"))
    assert state.status == "completed", state.failure
    return time.perf_counter() - began


def _count_commits(url: str) -> int:
    """A transaction that writes gets the next number, also the one that asks here."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        return int(row[0])


def _host(folder: Path, backend: StoreBackend, *, url: str, talker: Talker) -> Host:
    settings = Settings(runtime=RuntimeOptions(max_turns=TURNS + 5), store=StoreOptions(backend=backend))
    environ = {**os.environ, "DATABASE_URL": url}
    return Host(
        trust=MADE_HERE,
        settings=settings,
        workspace=folder,
        home=folder,
        environ=environ,
        provider=talker,
        tools=(Echo(),),
    )
