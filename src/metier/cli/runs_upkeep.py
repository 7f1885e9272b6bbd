"""`agent runs gc` and `agent runs rebuild`: deleting old runs, and writing an event log anew."""

from typing import Annotated

import anyio
import typer

from metier.cli.catalog import AsJson
from metier.cli.driving import open_place
from metier.cli.output import warn_line, write_json, write_line
from metier.cli.resume import RunName
from metier.cli.run import Config
from metier.errors import UsageError
from metier.runtime.runs import open_runtime
from metier.runtime.upkeep import Rebuilt, delete_runs, find_old_runs, rebuild_events
from metier.store.base import RunRow

MOST_DAYS = 100_000
"""Before that there were no runs, and soon no dates."""


def attach(app: typer.Typer) -> None:
    app.command("gc")(collect)
    app.command("rebuild")(rebuild)


def collect(
    *,
    keep: Annotated[int | None, typer.Option("--keep", min=0, help="Keep this many of the newest ended runs.")] = None,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", min=0, max=MOST_DAYS, help="Only runs that ended more than this many days ago."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Delete ended runs with their folders. Runs that wait for somebody or are being driven stay."""
    if keep is None and older_than is None:
        raise UsageError("Nothing says which runs are to go", hint="Add --keep N or --older-than DAYS")

    async def work() -> list[RunRow]:
        async with open_runtime(open_place(config)) as runtime:
            rows = await find_old_runs(runtime, keep=keep, older_than_days=older_than)
            return rows if dry_run else await delete_runs(runtime, rows)

    rows = anyio.run(work)
    if as_json:
        write_json({"dry_run": dry_run, "deleted": [row.run_id for row in rows]})
        return
    for row in rows:
        write_line(row.run_id)
    warn_line(f"{len(rows)} runs {'would be' if dry_run else 'were'} deleted")


def rebuild(run: RunName, *, as_json: AsJson = False, config: Config = None) -> None:
    """Write the event log of a run anew from its journal. Events that only watched are lost."""

    async def work() -> tuple[str, Rebuilt]:
        async with open_runtime(open_place(config)) as runtime:
            row = await runtime.find(run)
            return row.run_id, await rebuild_events(runtime, row.run_id)

    run_id, rebuilt = anyio.run(work)
    if as_json:
        write_json({"run_id": run_id, "events": rebuilt.events, "lost": rebuilt.lost})
        return
    write_line(f"{run_id}: {rebuilt.events} events were written from the journal")
    if rebuilt.lost:
        warn_line(f"note: {rebuilt.lost} events that only watched (retries, budgets, signals) are not in a journal")
