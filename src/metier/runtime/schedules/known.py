"""The schedules of a workspace: those of its file and those that were added to the store, as each stands."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from metier.dataclass import dataclass
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.definitions.schedule import FILE_NAME, ScheduleDefinition, ScheduleFile, load_schedules
from metier.definitions.schedule_times import list_next
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.errors import UsageError
from metier.ids import format_run_id
from metier.runtime.host import Host
from metier.runtime.runs import Runtime
from metier.skills.trust.workspace_trust import digest_bytes
from metier.store.base import RunRow
from metier.store.schedules import Firing, ScheduleMark, ScheduleRow

type Origin = Literal["added", "file"]
_A_DAY = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSchedule:
    """A schedule as it stands."""

    definition: ScheduleDefinition
    origin: Origin
    is_paused: bool = False
    withheld: str = ""
    """Why it does not fire although it is not paused; empty where it does."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def is_active(self) -> bool:
        return not self.is_paused and not self.withheld


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleHistory:
    """When a schedule is due next, and what became of its due times, latest first."""

    schedule: KnownSchedule
    next_times: Sequence[datetime] = ()
    firings: Sequence[Firing] = ()
    runs: dict[str, RunRow]
    """The runs of those firings that are still in the store, by id."""


def read_schedule_file(place: Host) -> ScheduleFile:
    return load_schedules(place.workspace, WORKSPACE_FOLDERS)


def find_withheld(place: Host, file: ScheduleFile) -> str:
    """Why schedules of the file do not fire; empty where they do. Those of a clone wait for `agent trust`."""
    if place.trust.counts("schedules", digest_bytes(file.content)):
        return ""
    if place.trust.record is None:
        return "this folder came from elsewhere and is not trusted"
    return f"{FILE_NAME} changed since you trusted this folder"


async def list_schedules(runtime: Runtime) -> list[KnownSchedule]:
    """By name. Where a file and the store have the same name, the file's counts."""
    queue = runtime.place.settings.worker.queue
    rows = {row.name: row for row in await runtime.store.schedules.list_schedules(queue)}
    file = read_schedule_file(runtime.place)
    withheld = find_withheld(runtime.place, file) if file.schedules else ""
    found = {row.name: _read_added(row) for row in rows.values() if row.definition}
    for definition in file.schedules:
        paused = definition.name in rows and rows[definition.name].is_paused
        found[definition.name] = KnownSchedule(
            definition=definition, origin="file", is_paused=paused, withheld=withheld
        )
    return [found[name] for name in sorted(found)]


def _read_added(row: ScheduleRow) -> KnownSchedule:
    """One that another version wrote and this one cannot read is listed and does not fire; it must stop no worker."""
    try:
        definition = ScheduleDefinition.model_validate_json(row.definition)
        withheld = ""
    except ValidationError as error:
        definition = ScheduleDefinition(name=row.name, every=_A_DAY, prompt=row.definition)
        withheld = f"its definition cannot be used: {error.errors()[0]['msg']}"
    return KnownSchedule(definition=definition, origin="added", is_paused=row.is_paused, withheld=withheld)


def list_schedule_problems(place: Host) -> tuple[Problem, ...]:
    """What is wrong with the file, and that it does not count where that is so."""
    file = read_schedule_file(place)
    if file.schedules and not has_errors(file.problems) and (withheld := find_withheld(place, file)):
        message = f"Its schedules do not fire: {withheld}"
        problem = Problem(
            severity="warning",
            code="schedules_withheld",
            message=message,
            file=file.file,
            hint="Read it, then run `agent trust`",
        )
        return (*file.problems, problem)
    return file.problems


async def get_schedule(runtime: Runtime, name: str) -> KnownSchedule:
    """Raises `UsageError` for a name that no schedule has."""
    known = await list_schedules(runtime)
    for schedule in known:
        if schedule.name == name:
            return schedule
    names = [schedule.name for schedule in known]
    there = f"There are: {', '.join(names)}" if names else "Add one with `agent schedule add`"
    raise UsageError(f"No schedule is called {name!r}", hint=hint_nearest(name, names) or there)


async def read_history(runtime: Runtime, schedule: KnownSchedule, *, times: int, firings: int) -> ScheduleHistory:
    now = runtime.place.clock.now()
    mark = await open_mark(runtime, schedule.definition, now=now)
    queue = runtime.place.settings.worker.queue
    past = await runtime.store.schedules.list_firings(queue, name=schedule.name, limit=firings)
    runs = [await runtime.store.find_run(firing.run_id) for firing in past if firing.outcome == "started"]
    after = max(now, mark.decided_to)
    return ScheduleHistory(
        schedule=schedule,
        next_times=list_next(schedule.definition, after=after, anchor=mark.since, count=times),
        firings=past,
        runs={run.run_id: run for run in runs if run is not None},
    )


async def open_mark(runtime: Runtime, definition: ScheduleDefinition, *, now: datetime) -> ScheduleMark:
    """How far a schedule was decided; one that is seen for the first time begins now."""
    moment = now.replace(microsecond=0)
    return await runtime.store.schedules.open_mark(
        ScheduleMark(
            queue=runtime.place.settings.worker.queue,
            name=definition.name,
            timing=definition.timing,
            since=moment,
            decided_to=moment,
        )
    )


def name_run(queue: str, name: str, due_at: datetime) -> str:
    """The id of the run of a due time: it follows from the schedule, so that the store refuses a second one."""
    entropy = hashlib.sha256(f"{queue} {name} {due_at.isoformat()}".encode()).digest()[:6]
    return format_run_id(due_at, entropy)
