"""`agent approvals list`: list pending approvals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from metier.cli.shared.command_options import AsJson, Config, build_group, get_server_url
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import JsonList, warn_line, write_line
from metier.runtime import run_store
from metier.telemetry.excerpt import one_line

if TYPE_CHECKING:
    from metier.runtime.approval_questions import ApprovalQuestion


_SHOWN = 80


app = build_group()


@app.command("list")
def list_approvals(
    *,
    every: Annotated[bool, typer.Option("--all", help="Include decided approvals.")] = False,
    run: Annotated[str, typer.Option("--run", help="Filter by run ID.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List pending approvals, oldest first."""

    shown = JsonList() if as_json else None

    async def show_pages() -> int:
        status = "" if every else "open"
        if not run and not await _has_any(status, config):
            return 0
        # Imported late: reading approvals loads the journal code, and usually there are none.
        from metier.cli.shared.open_runs import open_runs

        count = 0
        async with open_runs(config) as runs:
            run_id = (await runs.find(run)).run_id if run else ""
            async for page in runs.approvals.pages(run_id=run_id, status=status):
                for question in page:
                    _write_question(question, shown)
                count += len(page)
        return count

    count = anyio.run(show_pages)
    if shown is not None:
        shown.close()
    elif not count:
        warn_line("No pending approvals" if not every else "No approvals yet")


async def _has_any(status: str, config: Path | None) -> bool:
    if get_server_url():
        return True
    async with run_store.open_runs(open_host(config)) as store:
        return bool(await store.list_approvals(run_id="", status=status, after=0, limit=1))


def _write_question(question: "ApprovalQuestion", shown: JsonList | None) -> None:
    if shown is not None:
        from metier.runtime.documents import approval_as_json

        shown.add(approval_as_json(question))
        return
    row, short = question.row, one_line(str(question.arguments), _SHOWN)
    write_line(f"{row.approval_id}  {row.status:<8}  run {row.run_id}  {question.tool} {short}")
