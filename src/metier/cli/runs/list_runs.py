"""`agent runs list`: list runs from the index, without importing the engine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from metier.cli.shared.command_options import AsJson, Config, build_group, get_server_url
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import JsonList, warn_line, write_line
from metier.definitions.reader import join_words
from metier.errors import UsageError
from metier.ids import CHILD
from metier.runtime.records.index_rows import find_row_cost, get_shown_status, row_as_json
from metier.runtime.records.run_search import STATUSES
from metier.runtime.run_store import StoredRunList, open_runs
from metier.store.base import RunRow
from metier.telemetry.amounts import format_cost
from metier.telemetry.excerpt import one_line

if TYPE_CHECKING:
    from metier.runtime.run_access import RunList

MAX_RUNS = 1_000_000_000
"""Fits into an integer column of both databases."""
_TASK_WIDTH = 60


app = build_group()


@app.command("list")
def list_runs(
    *,
    status: Annotated[str | None, typer.Option("--status", help="Filter by status.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MAX_RUNS, help="Maximum number of runs.")] = 20,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List runs, newest first."""
    if status is not None and status not in STATUSES:
        raise UsageError(f"--status must be {join_words(STATUSES)}, not {status!r}")
    shown = JsonList() if as_json else None

    async def show_pages() -> int:
        count = 0
        async with _open_list(config) as runs:
            async for page in runs.list_pages(status=status or "", limit=limit):
                for row in page:
                    shown.add(row_as_json(row)) if shown is not None else _write_row(row)
                count += len(page)
        return count

    count = anyio.run(show_pages)
    if shown is not None:
        shown.close()
    elif not count:
        warn_line("No runs yet")


@asynccontextmanager
async def _open_list(config: Path | None) -> AsyncGenerator["RunList"]:
    if url := get_server_url():
        # Imported late: a local list needs no HTTP client.
        from metier.cli.shared.server_client import open_server

        async with open_server(url) as server:
            yield server
    else:
        async with open_runs(open_host(config)) as store:
            yield StoredRunList(store)


def _write_row(row: RunRow) -> None:
    # The parent is older, so it is listed below its children; the arrow marks them.
    task = one_line(("↳ " if row.run_id.startswith(CHILD) else "") + row.task, _TASK_WIDTH)
    turns = "1 turn " if row.turns == 1 else f"{row.turns} turns"
    # A run without model calls has no cost of its own; its children list theirs.
    cost = format_cost(find_row_cost(row)) if row.turns else ""
    write_line(f"{row.run_id:<30}  {get_shown_status(row):<14}  {turns:>8}  {cost:>12}  {task}")
