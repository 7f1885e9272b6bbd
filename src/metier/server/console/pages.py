"""The web console: pages over `runtime` and `views`, rendered on the server. It owns nothing that a kill could lose."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from fastapi import APIRouter, FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from metier.server.console import (
    audit_pages,
    bulk_pages,
    chat_pages,
    eval_pages,
    health_pages,
    inbox_pages,
    live,
    policy_pages,
    prompt_pages,
    run_list,
    run_pages,
    schedule_pages,
    skill_pages,
    task_pages,
    usage_pages,
)
from metier.server.console.health_pages import Checkup
from metier.server.console.live import Pulse
from metier.server.console.rendering import build_console_environment
from metier.server.mounts import Lifespan
from metier.server.state import ServerState
from metier.views.page.environment import STYLE_FILE

STATIC = Path(__file__).parent / "static"
_ROUTERS: tuple[APIRouter, ...] = (
    inbox_pages.router,
    bulk_pages.router,  # before the page of a run, whose path matches too
    run_list.router,
    run_pages.router,
    prompt_pages.router,
    chat_pages.router,
    task_pages.router,
    skill_pages.router,
    eval_pages.router,
    policy_pages.router,
    usage_pages.router,
    schedule_pages.router,
    health_pages.router,
    audit_pages.router,
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
    state.access.allow_writes(r"/runs/views(/remove)?", "viewer")

    @asynccontextmanager
    async def beat() -> AsyncGenerator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(pulse.beat, state.runtime)
            yield
            group.cancel_scope.cancel()

    return beat


async def _send_style() -> Response:
    return FileResponse(STYLE_FILE, media_type="text/css", headers={"cache-control": "no-cache"})
