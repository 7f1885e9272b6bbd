"""The web console: server-rendered pages over `runtime` and `views`. It has no state that a crash could lose."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from fastapi import APIRouter, FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from metier.server.console import (
    chat_pages,
    inbox_pages,
    live,
    report_pages,
    run_list,
    run_pages,
    task_pages,
    workspace_pages,
)
from metier.server.console.live import Pulse
from metier.server.console.rendering import build_console_environment
from metier.server.console.workspace_pages import Checkup
from metier.server.state import Lifespan, ServerState
from metier.views.page_rendering import STYLE_FILE

STATIC = Path(__file__).parent / "static"
_ROUTERS: tuple[APIRouter, ...] = (
    inbox_pages.router,
    run_list.router,  # before the pages of a run, whose path matches `/runs/bulk` too
    run_pages.router,
    chat_pages.router,
    task_pages.router,
    report_pages.router,
    workspace_pages.router,
    live.router,
)
_DECISIONS = (r"/approvals/[^/]+(/edit)?", r"/inbox/many", r"/runs/[^/]+/(answer|doubt|accept|raise|resume)")


def mount(app: FastAPI, state: ServerState) -> Lifespan:
    pulse = Pulse()
    app.state.console = build_console_environment(state.redactor)
    app.state.pulse = pulse
    app.state.checkup = Checkup()
    for router in _ROUTERS:
        app.include_router(router)
    app.add_api_route("/static/style.css", _send_style, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC))
    for path in _DECISIONS:
        state.access.allow_writes(path, "approver")
    # A view belongs to its user and changes no run.
    state.access.allow_writes(r"/runs/views(/remove)?", "viewer")

    @asynccontextmanager
    async def beat() -> AsyncGenerator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(pulse.beat, state.runtime)
            yield
            group.cancel_scope.cancel()

    return beat


async def _send_style() -> Response:
    # `no-cache` lets browsers keep the file, but makes them ask for a newer one.
    return FileResponse(STYLE_FILE, media_type="text/css", headers={"cache-control": "no-cache"})
