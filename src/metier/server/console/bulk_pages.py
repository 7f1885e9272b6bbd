"""Cancel or retry all runs that a filter of the run list matches: a page to confirm, then one request per batch."""

from typing import Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from metier.decisions import TaskState
from metier.errors import MetierError, UsageError
from metier.runtime.runs import Runtime
from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.console.run_filter import RunFilter, parse_filter
from metier.server.console.run_list import build_listed
from metier.server.run_actions import RETRIABLE, retry
from metier.store.base import RunRow
from metier.store.usage import UNFINISHED

router = APIRouter(include_in_schema=False, route_class=PageRoute)

type BulkAction = Literal["cancel", "retry"]
RETRIED: tuple[TaskState, ...] = ("failed", "timeout")
"""The statuses that a retry covers if the filter names none: canceled runs were ended on purpose."""
MAX_RUNS: dict[BulkAction, int] = {"cancel": 500, "retry": 50}
"""Per request, so that it ends before a proxy gives up. A retry builds a whole run, which takes longer."""
_SHOWN = 20
_PAGE = 1_000


class Batch(Struct, frozen=True, kw_only=True):
    rows: tuple[RunRow, ...]
    has_more: bool


@router.get("/runs/bulk")
async def confirm(page: Here) -> Response:
    """Show what would be canceled or retried."""
    action = _parse_action(page.request.query_params.get("do", ""))
    wanted = parse_filter(page.request.query_params, now=page.state.host.clock.now())
    batch = await collect(page.state.runtime, wanted, action)
    return await page.render(
        "bulk.html",
        "runs",
        action=action,
        wanted=wanted,
        batch=batch,
        shown=[build_listed(row) for row in batch.rows[:_SHOWN]],
        newest=batch.rows[0].number if batch.rows else 0,
    )


@router.post("/runs/bulk")
async def carry_out(page: Here) -> Response:
    """Act on each run on its own: one that fails does not stop the others."""
    form = await page.read_form()
    action = _parse_action(form.get("do", ""))
    newest = form.get("newest", "")
    if not newest.isdecimal() or len(newest) > 12:
        raise UsageError("The newest run of the batch is missing", hint="Open the page again")
    wanted = parse_filter(dict(parse_qsl(form.get("address", ""))), now=page.state.host.clock.now())
    # Runs that started after the page was shown were not confirmed.
    batch = await collect(page.state.runtime, wanted, action, before=int(newest) + 1)
    failed: list[str] = []
    for row in batch.rows:
        try:
            await _act(page, action, row.run_id)
        except MetierError as error:
            failed.append(f"{row.run_id}: {error.message}")
    if failed:
        done = len(batch.rows) - len(failed)
        raise UsageError(f"{done} of {len(batch.rows)} runs done", hint="; ".join(failed[:_SHOWN]))
    return page.go(f"/runs?{wanted.address}&done=bulk_{action}")


async def _act(page: Page, action: BulkAction, run_id: str) -> None:
    match action:
        case "cancel":
            await page.state.runtime.cancel(run_id, by=page.user.name)
        case "retry":
            await retry(page.state, run_id)


async def collect(runtime: Runtime, wanted: RunFilter, action: BulkAction, *, before: int = 0) -> Batch:
    """The newest runs that the filter matches and the action fits."""
    fitting = UNFINISHED if action == "cancel" else RETRIED
    if wanted.search.statuses:
        possible = UNFINISHED if action == "cancel" else RETRIABLE
        fitting = tuple(status for status in wanted.search.statuses if status in possible)
    if not fitting:
        return Batch(rows=(), has_more=False)
    search = replace(wanted.search, statuses=fitting)
    limit, last = MAX_RUNS[action], before
    found: list[RunRow] = []
    while len(found) <= limit and (rows := await runtime.store.search_runs(search, before=last, limit=_PAGE)):
        last = rows[-1].number
        found += [row for row in rows if wanted.fits(row)]
    return Batch(rows=tuple(found[:limit]), has_more=len(found) > limit)


def _parse_action(word: str) -> BulkAction:
    match word:
        case "cancel" | "retry":
            return word
        case _:
            raise UsageError(f"Unknown action {word[:40]!r}", hint="Use cancel or retry")
