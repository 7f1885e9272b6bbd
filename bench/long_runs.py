"""Long runs: what turn 3,000 costs beside turn 100, going on with such a run, and re-driving it from its journal."""

import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio

from bench.engine import Echo, Talker
from bench.table import Row
from metier.engine.options import RuntimeOptions
from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer
from metier.runtime.history.replays import replay_run
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE

TURNS = 3_000
WINDOW = 50


def rows() -> list[Row]:
    return anyio.run(_measure)


async def _measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        talker = _Watched(TURNS)
        settings = Settings(runtime=RuntimeOptions(max_turns=TURNS + 5))
        host = Host(
            trust=MADE_HERE,
            settings=settings,
            workspace=Path(folder),
            home=Path(folder),
            environ=dict(os.environ),
            provider=talker,
            tools=(Echo(),),
        )
        async with open_runtime(host) as runtime:
            state = await runtime.start(RunRequest(task="talk for long"))
            assert state.status == "completed", state.failure
            resumed = await _cpu(runtime, state.run_id)
            started = time.process_time()
            report = await replay_run(runtime, state.run_id)
            replayed = time.process_time() - started
            assert report.is_equal, report.outcome.divergence
    costs = [1000 * (after - before) for before, after in zip(talker.marks, talker.marks[1:], strict=False)]
    early, late = (statistics.median(costs[turn - WINDOW : turn]) for turn in (100, TURNS))
    grown = talker.sizes[TURNS] - talker.sizes[TURNS // 2]
    return [
        Row(f"CPU of turn {TURNS} / turn 100", f"{late / early:.2f} x ({late:.2f} / {early:.2f} ms)", "<= 1.2 x",
            late / early <= 1.2),
        Row(f"memory at turn {TURNS} beyond turn {TURNS // 2}", f"{grown:.1f} MB", "<= 8 MB", grown <= 8),
        Row(f"resume of a run of {TURNS} turns, CPU", f"{resumed:.2f} s", "<= 0.5 s", resumed <= 0.5),
        Row(f"replay --execute of {TURNS} turns, CPU", f"{replayed:.1f} s", "<= 10 s", replayed <= 10),
    ]  # fmt: skip


async def _cpu(runtime: Runtime, run_id: str) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        await runtime.resume(run_id)
        best = min(best, time.process_time() - started)
    return best


class _Watched(Talker):
    """Notes the memory of the process at each turn too."""

    def __init__(self, turns: int) -> None:
        super().__init__(turns)
        self.sizes: list[float] = [0.0]

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        unit = 1 if sys.platform == "darwin" else 1024
        self.sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)
        return await super().reply(request, observe=observe)
