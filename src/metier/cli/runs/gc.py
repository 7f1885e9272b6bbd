"""`agent runs gc` and `agent runs rebuild`: deleting old runs, and writing an event log anew."""

import json
from collections.abc import Sequence
from typing import Annotated

import anyio
import typer

from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import AsJson, Config, RunName
from metier.cli.shared.output import JsonList, count, warn_line, write_json, write_line
from metier.errors import UsageError
from metier.runtime.history.maintenance import Rebuilt, Retention, delete_old_runs, list_old_runs, rebuild_events
from metier.runtime.runs import open_runtime

MAX_DAYS = 100_000
"""Before that there were no runs, and soon no dates."""
PROGRESS = 5000
"""After so many runs a line on stderr says how far it is."""


def attach(app: typer.Typer) -> None:
    app.command("gc")(collect)
    app.command("rebuild", rich_help_panel="Advanced")(rebuild)


def collect(
    *,
    keep: Annotated[int | None, typer.Option("--keep", min=0, help="Keep the newest N ended runs.")] = None,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", min=0, max=MAX_DAYS, help="Delete runs that ended more than N days ago."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs without deleting them.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Delete ended runs."""
    if keep is None and older_than is None:
        raise UsageError("No runs selected", hint="Add --keep N or --older-than DAYS")

    wanted = Retention(keep=keep or 0, older_than_days=older_than)
    shown = _Deleted(dry_run=dry_run, as_json=as_json)

    async def work() -> None:
        async with open_runtime(open_host(config)) as runtime:
            if not dry_run:
                await delete_old_runs(runtime, wanted, tell=shown.tell)
                return
            async for page in list_old_runs(runtime, wanted):
                shown.tell([row.run_id for row in page])

    anyio.run(work)
    shown.close()


class _Deleted:
    """Print the IDs of deleted runs and their number."""

    def __init__(self, *, dry_run: bool, as_json: bool) -> None:
        self._dry_run = dry_run
        self._count = 0
        self._list: JsonList | None = None
        if as_json:
            opening = f'{{\n  "dry_run": {json.dumps(dry_run)},\n  "deleted": '
            self._list = JsonList(opening=opening, closing="\n}")

    def tell(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            if self._list is None:
                write_line(run_id)
            else:
                self._list.add(run_id)
        before, self._count = self._count, self._count + len(run_ids)
        if before // PROGRESS != self._count // PROGRESS:
            warn_line(f"{self._describe()} so far")

    def _describe(self) -> str:
        verb = "would be" if self._dry_run else "was" if self._count == 1 else "were"
        return f"{count(self._count, 'run')} {verb} deleted"

    def close(self) -> None:
        if self._list is None:
            warn_line(self._describe())
        else:
            self._list.close()


def rebuild(run: RunName, *, as_json: AsJson = False, config: Config = None) -> None:
    """Rebuild a run's event log from its journal."""

    async def work() -> tuple[str, Rebuilt]:
        async with open_runtime(open_host(config)) as runtime:
            row = await runtime.find(run)
            return row.run_id, await rebuild_events(runtime, row.run_id)

    run_id, rebuilt = anyio.run(work)
    if as_json:
        write_json({"run_id": run_id, "events": rebuilt.events, "lost": rebuilt.lost})
        return
    write_line(f"{run_id}: {count(rebuilt.events, 'event')} rebuilt from the journal")
    if rebuilt.lost:
        warn_line(f"note: {count(rebuilt.lost, 'informational event')} (retries, budgets, signals) lost")
