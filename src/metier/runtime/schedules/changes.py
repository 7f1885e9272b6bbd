"""Add, pause and remove schedules. What a file of the workspace defines is changed there, and only paused here."""

from dataclasses import replace

from metier.definitions.schedule import FILE_NAME, ScheduleDefinition
from metier.errors import UsageError
from metier.runtime.runs import Runtime
from metier.runtime.schedules.known import KnownSchedule, get_schedule, list_schedules, open_mark
from metier.runtime.workspace.agents import resolve_agent
from metier.runtime.workspace.tasks import get_task
from metier.store.schedules import ScheduleRow


async def add_schedule(runtime: Runtime, definition: ScheduleDefinition, *, replaces: bool = False) -> KnownSchedule:
    """Put a schedule into the store; it counts from now on. Raises `UsageError`, `ConfigError`."""
    if any(known.name == definition.name and known.origin == "file" for known in await list_schedules(runtime)):
        raise UsageError(f"Schedule {definition.name!r} is defined in {FILE_NAME}", hint="Change it there")
    # What it names must exist: a schedule that cannot start is found out now, not at night.
    if definition.agent:
        resolve_agent(runtime.place, definition.agent, model="")
    if definition.task:
        get_task(runtime.place, definition.task)
    now = runtime.place.clock.now()
    row = ScheduleRow(
        queue=runtime.place.settings.worker.queue,
        name=definition.name,
        definition=definition.model_dump_json(exclude_defaults=True),
        created_at=now,
    )
    if not await runtime.store.schedules.put_schedule(row, replace=replaces):
        raise UsageError(f"There is a schedule {definition.name!r} already", hint="Give --replace to change it")
    await open_mark(runtime, definition, now=now)
    return KnownSchedule(definition=definition, origin="added")


async def pause_schedule(runtime: Runtime, name: str, *, is_paused: bool) -> KnownSchedule:
    """Due times of a pause are not made up for."""
    known = await get_schedule(runtime, name)
    now = runtime.place.clock.now()
    row = ScheduleRow(queue=runtime.place.settings.worker.queue, name=name, is_paused=is_paused, created_at=now)
    await runtime.store.schedules.pause_schedule(row, now=now)
    return KnownSchedule(definition=known.definition, origin=known.origin, is_paused=is_paused, withheld=known.withheld)


async def remove_schedule(runtime: Runtime, name: str) -> None:
    """Its history and its runs stay. Raises `UsageError` for one that a file defines."""
    known = await get_schedule(runtime, name)
    if known.origin == "file":
        raise UsageError(f"Schedule {name!r} is defined in {FILE_NAME}", hint="Take it out there, or pause it")
    queue = runtime.place.settings.worker.queue
    await runtime.store.schedules.delete_schedule(queue, name)
    for firing in await runtime.store.schedules.list_firings(queue, name=name, only_open=True):
        outcome = "skipped" if firing.outcome == "due" else firing.outcome
        removed = replace(firing, outcome=outcome, reason=firing.reason or "the schedule was removed", is_open=False)
        await runtime.store.schedules.settle_firing(removed, was=firing.outcome)
