"""The page of a run with 2,000 journal entries, fetched as a browser does; the time is that of the processor."""

import os
import secrets
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
from starlette.testclient import TestClient

from bench.engine import Echo, Talker
from bench.table import Row
from metier.engine.options import RuntimeOptions
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.server.app import create_app
from metier.server.server_config import ServerConfig
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE

ENTRIES = 2_000
_TURNS = ENTRIES // 6
_ROUNDS = 7


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_id, entries = anyio.run(partial(_make_run, folder))
        taken = _fetch(folder, run_id)
    return [
        Row(f"page of a run of {entries:,} entries", f"{taken * 1000:.0f} ms of processor", "<= 300 ms", taken <= 0.3)
    ]


async def _make_run(folder: Path) -> tuple[str, int]:
    settings = Settings(runtime=RuntimeOptions(max_turns=_TURNS + 5))
    host = Host(
        trust=MADE_HERE,
        settings=settings,
        workspace=folder,
        home=folder,
        environ=dict(os.environ),
        provider=Talker(_TURNS),
        tools=(Echo(),),
    )
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="talk for long"))
    assert state.status == "completed", state.failure
    return state.run_id, state.seq


def _fetch(folder: Path, run_id: str) -> float:
    private = folder / "private"
    private.mkdir()
    token = secrets.token_urlsafe(32)
    environ = {**os.environ, "AGENT_TRUST": "all"}
    server_config = ServerConfig(
        folder=folder, home=folder, environ=environ, token=token, key=secrets.token_bytes(32), private=private, port=80
    )
    times: list[float] = []
    headers = {"authorization": f"Bearer {token}", "accept": "text/html"}
    with TestClient(create_app(server_config), base_url="http://127.0.0.1", headers=headers) as client:
        for _ in range(_ROUNDS):
            began = time.process_time()
            answer = client.get(f"/runs/{run_id}")
            times.append(time.process_time() - began)
            assert answer.status_code == 200, answer.text
    return statistics.median(times)
