"""`agent replay --points` and `--fork-at`: where a run can be taken up again, and doing it."""

from dataclasses import asdict

import anyio

from metier.cli.run.driving import View, drive_run
from metier.cli.shared.options import Config
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.shared.place import open_place
from metier.engine.state import RunState
from metier.runtime.history.entries import read_history
from metier.runtime.history.forks import ForkRequest, Point, find_points, fork_run
from metier.runtime.runs import Runtime, Watch, open_runtime


def list_points(run: str, config: Config, *, as_json: bool) -> int:
    async def work() -> tuple[Point, ...]:
        async with open_runtime(open_place(config)) as runtime:
            row = await runtime.find(run)
            return find_points(row.run_id, await read_history(runtime, row.run_id))

    points = anyio.run(work)
    if as_json:
        write_json([asdict(point) for point in points])
        return 0
    for point in points:
        write_line(f"{point.number:>5}  turn {point.turn:<3}  after {point.kind:<20}  next {point.phase}")
    return 0


def fork(run: str, config: Config, request: ForkRequest, *, as_json: bool) -> int:
    """Drive the new run; the exit code is that of `agent run`."""

    async def work(runtime: Runtime, watch: Watch) -> RunState:
        row = await runtime.find(run)
        forked = await fork_run(runtime, row.run_id, request, watch=watch)
        warn_line(f"fork:    of {row.run_id} after entry {request.at}")
        for name in forked.changed:
            warn_line(f"changed: {name}")
        return forked.state

    # As a flag of `agent run` would be: an unknown provider is refused here.
    flags = {"model.provider": request.provider} if request.provider else None
    return drive_run(open_place(config, flags), work, View(output="json" if as_json else "text"))
