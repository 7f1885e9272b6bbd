"""`agent cost`: token usage and cost of this workspace's runs, by model, agent, skill, task or day."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from metier.cli.shared.command_options import AsJson, Config
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import in_runtime
from metier.cli.shared.output import warn_line, write_json
from metier.runtime.history.spending import Spending, parse_since, read_spending, record_old_runs
from metier.runtime.runs import Runtime
from metier.views.painter import build_painter
from metier.views.run_view import Usage
from metier.views.spending import Grouping, Total, describe_usage, render_totals, total_as_json

_MAX_GROUPS = 10_000

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def cost(
    *,
    by: Annotated[Grouping, typer.Option("--by", help="Group by.")] = "model",
    since: Annotated[str, typer.Option("--since", help="Start of the period: 24h, 7d, 4w or 2026-01-31.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show token usage and cost.

    Child runs count for their own model, agent and skill.
    """
    start = parse_since(since, now=datetime.now(UTC)) if since else None

    async def read(runtime: Runtime) -> Spending:
        # Runs of earlier versions did not store their cost in the table that is read below.
        await record_old_runs(runtime)
        return await read_spending(runtime, by, since=start, limit=_MAX_GROUPS)

    totals = list(in_runtime(open_host(config), read).totals)
    if as_json:
        write_json([total_as_json(total, name=by) for total in totals])
        return
    if not totals:
        warn_line("No model calls recorded in this workspace")
        return
    print_totals(totals)


def print_totals(totals: list[Total]) -> None:
    """Print a line per group, and the total of several groups."""
    painter = build_painter(sys.stdout)
    painter.print(*render_totals(totals, width=painter.width))
    if len(totals) > 1:
        whole = Usage()
        for total in totals:
            whole = whole.plus(total.usage)
        painter.print(f"all: {describe_usage(whole, calls=sum(total.calls for total in totals))}")
    painter.close()
