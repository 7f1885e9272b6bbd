"""Schedules: their next and last due times, and adding, pausing, starting and removing one."""

from fastapi import APIRouter
from starlette.responses import Response

from metier.definitions.agent import FILE_NAME as AGENT_FILE
from metier.definitions.schedule import build_schedule
from metier.definitions.task import FILE_NAME as TASK_FILE
from metier.errors import UsageError
from metier.runtime.queue.schedules import (
    add_schedule,
    get_schedule,
    list_schedule_problems,
    list_schedules,
    pause_schedule,
    read_history,
    remove_schedule,
    start_now,
)
from metier.runtime.workspace.listed import list_definitions
from metier.server.console.rendering import Here, PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_FIELDS = ("name", "prompt", "task", "agent", "cron", "every", "timezone", "profile", "overlap", "missed")


@router.get("/schedules")
async def show_schedules(page: Here) -> Response:
    host, runtime = page.state.host, page.state.runtime
    histories = [await read_history(runtime, known, times=2, firings=5) for known in await list_schedules(runtime)]
    return await page.render(
        "schedules.html",
        "schedules",
        histories=histories,
        problems=[problem.render() for problem in list_schedule_problems(host)],
        tasks=sorted(found.id for found in list_definitions(host.workspace, "tasks", TASK_FILE).values()),
        agents=sorted(found.id for found in list_definitions(host.workspace, "agents", AGENT_FILE).values()),
    )


@router.post("/schedules")
async def add(page: Here) -> Response:
    form = await page.read_form()
    values = {name: form.get(name, "").strip() for name in _FIELDS}
    values = {name: value for name, value in values.items() if value}
    definition = build_schedule({"timezone": "UTC", "every": "0s", **values})
    await add_schedule(page.state.runtime, definition, replaces=False)
    return page.go("/schedules?done=scheduled")


@router.post("/schedules/{name}")
async def change_schedule(page: Here, name: str) -> Response:
    form = await page.read_form()
    match form.get("do", ""):
        case "pause" | "resume" as word:
            await pause_schedule(page.state.runtime, name, is_paused=word == "pause")
        case "remove":
            await remove_schedule(page.state.runtime, name)
            return page.go("/schedules?done=unscheduled")
        case "run":
            started = await start_now(page.state.runtime, await get_schedule(page.state.runtime, name))
            page.state.nudge()
            return page.go(f"/runs/{started.run_id}")
        case word:
            raise UsageError(f"Unknown action {word[:40]!r} for a schedule", hint="Use one of the buttons")
    return page.go("/schedules")
