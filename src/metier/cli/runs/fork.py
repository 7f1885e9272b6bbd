"""`agent fork`: start a new run that shares the first entries of another run."""

from typing import Annotated

import anyio
import typer
from msgspec import to_builtins

from metier.cli.run.driver import View, drive_run
from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import AsJson, Config, RunName
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.runtime.driver import DriveOptions
from metier.runtime.history.forks import ForkRequest, Point, find_points, fork_run
from metier.runtime.history.run_views import read_history
from metier.runtime.runs import Runtime, open_runtime

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def fork(
    run: RunName,
    *,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="Number of entries to share. Default: list the fork points.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Model for the new run.")] = "",
    provider: Annotated[str, typer.Option("--provider", help="Provider for the new run.")] = "",
    task: Annotated[str, typer.Option("--task", help="Task for the new run.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Start a new run from a point of an earlier one."""
    if at is None:
        if model or provider or task:
            raise UsageError("--model, --provider and --task need --at N", hint=f"List the points: `agent fork {run}`")
        return list_points(run, config, as_json=as_json)
    return start_fork(run, config, ForkRequest(at=at, model=model, provider=provider, task=task), as_json=as_json)


def list_points(run: str, config: Config, *, as_json: bool) -> int:
    """Print the entries at which the run can be forked."""

    async def work() -> tuple[Point, ...]:
        async with open_runtime(open_host(config)) as runtime:
            row = await runtime.find(run)
            return find_points(row.run_id, await read_history(runtime, row.run_id))

    points = anyio.run(work)
    if as_json:
        write_json([to_builtins(point) for point in points])
        return 0
    for point in points:
        write_line(f"{point.number:>5}  turn {point.turn:<3}  after {point.kind:<20}  next {point.phase}")
    return 0


def start_fork(run: str, config: Config, request: ForkRequest, *, as_json: bool) -> int:
    """Run the fork and return the exit code of `agent run`."""

    async def work(runtime: Runtime, watch: DriveOptions) -> RunState:
        row = await runtime.find(run)
        forked = await fork_run(runtime, row.run_id, request, watch=watch)
        warn_line(f"fork:    of {row.run_id} after entry {request.at}")
        for name in forked.changed:
            warn_line(f"changed: {name}")
        return forked.state

    # Passed as a flag, as in `agent run`, so that an unknown provider is rejected here.
    flags = {"model.provider": request.provider} if request.provider else None
    return drive_run(open_host(config, flags), work, View(output="json" if as_json else "text"))
