"""Evals over time: per target the share that passed, each case at each eval, and what changed since the last commit."""

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import Response

from metier.evals.history import build_page, load_results
from metier.server.console.rendering import Here, PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/evals")
async def show_evals(page: Here) -> Response:
    results = await run_sync(load_results, page.state.host.runs)
    targets = build_page(results)
    return await page.render("evals.html", "evals", targets=targets)
