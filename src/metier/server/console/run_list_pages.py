"""The list of runs, by a filter in its address, and the filters that a user gave a name."""

from urllib.parse import parse_qsl

from fastapi import APIRouter
from starlette.responses import Response

from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.console.run_filter import STATES, parse_filter
from metier.server.console.run_list import list_page, read_last_day
from metier.server.console.saved_views import MAX_NAME_LENGTH, SavedView, list_views, remove_view, save_view

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MORE = ("agent", "model", "skill", "task", "cost", "since", "until")
"""Filters that are folded away until one is used."""
VIEWS = (
    ("All", ""),
    ("Running", "status=in_progress,delegating,pending"),
    ("Waiting", "status=paused,input_required,interrupted,worker_lost"),
    ("Failed", "status=failed,timeout,blocked,escalated"),
    ("Last 24 hours", "since=24h"),
    ("Not completed", "status=-completed"),
)


@router.get("/runs")
async def show_runs(page: Here) -> Response:
    return await _render_list(page, "runs.html")


@router.get("/runs/rows")
async def show_rows(page: Here) -> Response:
    return await _render_list(page, "run_rows.html")


async def _render_list(page: Page, template: str) -> Response:
    runtime, params = page.state.runtime, page.request.query_params
    now = page.state.host.clock.now()
    wanted = parse_filter(params, now=now)
    cursor = params.get("before", "")
    before = int(cursor) if cursor.isdecimal() and len(cursor) < 12 else 0
    listed = await list_page(runtime, wanted, before=before)
    if template == "run_rows.html":
        return await page.render(template, "runs", listed=listed, wanted=wanted, before=before)
    own = await list_views(runtime.store.contexts, page.user.name)
    return await page.render(
        template,
        "runs",
        listed=listed,
        wanted=wanted,
        views=VIEWS,
        own_views=own,
        here_view=next((view.name for view in own if view.address == wanted.address), ""),
        longest_name=MAX_NAME_LENGTH,
        states=STATES,
        narrowed=any(wanted.given.get(name) for name in MORE),
        last_day=await read_last_day(runtime, now=now),
        before=before,
    )


@router.post("/runs/views")
async def save_this_view(page: Here) -> Response:
    """Name the filter that the list shows. Only its owner sees it."""
    form = await page.read_form()
    wanted = parse_filter(dict(parse_qsl(form.get("address", ""))), now=page.state.host.clock.now())
    view = SavedView(name=" ".join(form.get("name", "").split()), address=wanted.address)
    await save_view(page.state.runtime.store.contexts, page.user.name, view)
    return page.go(f"/runs?{wanted.address}")


@router.post("/runs/views/remove")
async def remove_this_view(page: Here) -> Response:
    form = await page.read_form()
    await remove_view(page.state.runtime.store.contexts, page.user.name, form.get("name", ""))
    return page.go("/runs")
