"""Pages that start runs: tasks and schedules."""

import json
from pathlib import Path
from typing import Literal

from fastapi import APIRouter
from msgspec.structs import replace
from pydantic import JsonValue
from starlette.responses import Response

from metier.definitions.schedule import build_schedule
from metier.definitions.task import TaskDefinition, load_task
from metier.engine.delegation import read_inputs
from metier.errors import UsageError
from metier.runtime.child_runs import request_task
from metier.runtime.queue.detached import submit
from metier.runtime.queue.scheduler import (
    add_schedule,
    get_schedule,
    list_schedule_problems,
    list_schedules,
    pause_schedule,
    read_history,
    remove_schedule,
    start_now,
)
from metier.runtime.requests import RunRequest
from metier.runtime.workspace.lookup import list_definitions, list_ids
from metier.runtime.workspace.tasks import get_task
from metier.server.console.rendering import Here, Page, PageRoute, parse_object
from metier.views.form_fields import FormField, build_field, parse_values

router = APIRouter(include_in_schema=False, route_class=PageRoute)

type Mode = Literal["live", "dry_run"]
_MAX_TASK_LENGTH = 100_000


@router.get("/tasks")
async def show_tasks(page: Here) -> Response:
    workspace = page.state.host.workspace
    listed = list_definitions(workspace, "task").values()
    read = [(found.id, load_task(Path(found.path), id=found.id, within=found.within)) for found in listed]
    return await page.render("tasks.html", "tasks", tasks=read, agents=list_ids(workspace, "agent"))


@router.post("/tasks")
async def start_words(page: Here) -> Response:
    """Start a run of a task in words, like `agent run`."""
    form = await page.read_form()
    # Browsers send every line end of a form as CRLF.
    text = form.get("task", "").replace("\r\n", "\n").strip()
    if not text:
        raise UsageError("The task is missing", hint="Describe the task")
    if len(text) > _MAX_TASK_LENGTH:
        raise UsageError(f"The task is longer than {_MAX_TASK_LENGTH:,} characters", hint="Put the rest into a file")
    request = RunRequest(
        task=text,
        mode=_read_mode(form.get("mode", "")),
        agent=form.get("agent", ""),
        model=form.get("model", "").strip(),
    )
    return await _start(page, request)


@router.get("/tasks/{task_id:path}")
async def show_task(page: Here, task_id: str) -> Response:
    task = get_task(page.state.host, task_id)
    return await _render_task(page, task)


@router.post("/tasks/{task_id:path}")
async def start_task(page: Here, task_id: str) -> Response:
    """Start a run of a task definition, with the inputs of the form or its JSON."""
    form = await page.read_form()
    task = get_task(page.state.host, task_id)
    text = form.get("json", "").strip()
    fields = build_task_fields(task)
    given = parse_object(text, what="inputs", example='{"name": "value"}') if text else parse_values(fields, form)
    request = replace(request_task(page.state.host, task.id, given), mode=_read_mode(form.get("mode", "")))
    return await _start(page, request)


async def _start(page: Page, request: RunRequest) -> Response:
    started = await submit(page.state.runtime, request, queue=page.state.queue)
    page.state.nudge()
    return page.go(f"/runs/{started.run_id}")


async def _render_task(page: Page, task: TaskDefinition) -> Response:
    example = {item.name: item.default or "" for item in task.inputs}
    return await page.render(
        "task.html",
        "tasks",
        task=task,
        fields=build_task_fields(task),
        example=json.dumps(example, indent=2, ensure_ascii=False),
    )


def build_task_fields(task: TaskDefinition) -> tuple[FormField, ...]:
    """Build a form field for each input from its schema."""
    fields: list[FormField] = []
    for spec in read_inputs(task):
        rules: dict[str, JsonValue] = {**(spec.value_schema or {}), "description": spec.description}
        fields.append(build_field(spec.name, rules, required=spec.default is None, default=spec.default))
    return tuple(fields)


def _read_mode(word: str) -> Mode:
    return "dry_run" if word == "dry_run" else "live"


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
        tasks=list_ids(host.workspace, "task"),
        agents=list_ids(host.workspace, "agent"),
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
