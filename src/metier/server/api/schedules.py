"""Schedules: runs that start at set times. The pool of a server starts them, as workers do."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from metier.definitions.schedule import build_schedule
from metier.runtime.queue.scheduler import (
    KnownSchedule,
    add_schedule,
    get_schedule,
    list_schedules,
    pause_schedule,
    read_history,
    remove_schedule,
    schedule_as_json,
    start_now,
)
from metier.server.api.bodies import Body, Page, ScheduleItem, StartedSchedule, answer, answer_page
from metier.server.idempotency import Document, Key, Once, run_once
from metier.server.problems import HttpProblem
from metier.server.state import ServerState, State

router = APIRouter(prefix="/schedules", tags=["schedules"])

type Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$", description="The name of a schedule.")]


class NewSchedule(Body):
    definition: Annotated[
        dict[str, JsonValue],
        Field(description="As in `.agent/schedules.yaml`: name, cron or every, prompt or task, agent, timezone, …"),
    ]
    replace: Annotated[bool, Field(description="Replace an added schedule of this name.")] = False


@router.get("", response_model=Page[ScheduleItem])
async def list_all(state: State) -> Response:
    """List schedules with their next due times and the outcomes of the last ones."""
    return answer_page(state, [await _describe(state, each) for each in await list_schedules(state.runtime)])


@router.get("/{name}", response_model=ScheduleItem)
async def show(state: State, name: Name) -> Response:
    """Return a schedule with its next due times and the outcomes of the last ones."""
    return answer(state, await _describe(state, await _find(state, name)))


@router.post("", status_code=201, response_model=ScheduleItem)
async def add(request: Request, state: State, wanted: NewSchedule, key: Key = "") -> Response:
    """Add a schedule."""

    async def work(_once: Once) -> Document:
        known = await add_schedule(state.runtime, build_schedule(wanted.definition), replaces=wanted.replace)
        return await _describe(state, known)

    return answer(state, await run_once(request, key, work), status=201)


@router.post("/{name}/pause", response_model=ScheduleItem)
async def pause(request: Request, state: State, name: Name, key: Key = "") -> Response:
    """Pause a schedule. Times that are due during the pause are skipped."""
    return await _set_paused(request, state, name, key=key, is_paused=True)


@router.post("/{name}/resume", response_model=ScheduleItem)
async def resume(request: Request, state: State, name: Name, key: Key = "") -> Response:
    """Resume a paused schedule."""
    return await _set_paused(request, state, name, key=key, is_paused=False)


@router.post("/{name}/run", status_code=201, response_model=StartedSchedule)
async def run_now(request: Request, state: State, name: Name, key: Key = "") -> Response:
    """Start a run of the schedule now. Its due times don't change."""

    async def work(_once: Once) -> Document:
        started = await start_now(state.runtime, await _find(state, name))
        state.nudge()
        return {"schedule": name, "run_id": started.run_id}

    return answer(state, await run_once(request, key, work), status=201)


@router.delete("/{name}", status_code=204)
async def remove(state: State, name: Name) -> Response:
    """Remove an added schedule. Its runs stay."""
    await _find(state, name)
    await remove_schedule(state.runtime, name)
    return Response(status_code=204)


async def _set_paused(request: Request, state: ServerState, name: str, *, key: str, is_paused: bool) -> Response:
    async def work(_once: Once) -> Document:
        await _find(state, name)
        return await _describe(state, await pause_schedule(state.runtime, name, is_paused=is_paused))

    return answer(state, await run_once(request, key, work))


async def _find(state: ServerState, name: str) -> KnownSchedule:
    # `get_schedule` raises `UsageError`, which would be status 400 instead of 404.
    if not any(each.name == name for each in await list_schedules(state.runtime)):
        raise HttpProblem(404, "schedule_unknown", f"No schedule is called {name!r}")
    return await get_schedule(state.runtime, name)


async def _describe(state: ServerState, schedule: KnownSchedule) -> Document:
    return schedule_as_json(await read_history(state.runtime, schedule, times=3, firings=10))
