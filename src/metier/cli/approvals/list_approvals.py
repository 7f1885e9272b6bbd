"""`agent approvals list`: what waits for a decision."""

from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import AsJson, Config
from metier.cli.shared.output import JsonList, warn_line, write_line
from metier.runtime.run_store import open_runs
from metier.telemetry.excerpt import one_line

if TYPE_CHECKING:
    from metier.runtime.questions.approval_questions import ApprovalQuestion


_SHOWN = 80


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback()
def _group() -> None:  # keeps `list` a command of a group
    return None


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
        host = open_host(config)
        async with open_runs(host) as store:
            status = "" if every else "open"
            if not run and not await store.list_approvals(run_id="", status=status, after=0, limit=1):
                return 0
            # What reads a question reads journals, and most often there is none.
            from metier.runtime.runs import Runtime

            runtime = Runtime(host, store)
            run_id = (await runtime.find(run)).run_id if run else ""
            count = 0
            async for page in runtime.approvals.pages(run_id=run_id, status=status):
                for question in page:
                    _write_question(question, shown)
                count += len(page)
            return count

    count = anyio.run(show_pages)
    if shown is not None:
        shown.close()
    elif not count:
        warn_line("No pending approvals" if not every else "No approvals yet")


def _write_question(question: "ApprovalQuestion", shown: JsonList | None) -> None:
    if shown is not None:
        from metier.runtime.documents import approval_as_json

        shown.add(approval_as_json(question))
        return
    row, short = question.row, one_line(str(question.arguments), _SHOWN)
    write_line(f"{row.approval_id}  {row.status:<8}  run {row.run_id}  {question.tool} {short}")
