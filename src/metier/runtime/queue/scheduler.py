"""The schedules of a workspace: list, add, pause, remove and fire them.

The store decides about each due time once, so its run starts once, whichever processes check the schedules.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue, ValidationError

from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.definitions.schedule import (
    FILE_NAME,
    ScheduleDefinition,
    ScheduleFile,
    get_jitter,
    iterate_times,
    list_due,
    list_next,
    load_schedules,
)
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.errors import MetierError, StoreError, UsageError
from metier.ids import format_run_id
from metier.runtime.child_runs import request_task
from metier.runtime.host import Host
from metier.runtime.queue.detached import submit
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.runtime.workspace.agents import resolve_agent
from metier.runtime.workspace.tasks import get_task
from metier.skills.workspace_trust import digest_bytes
from metier.store.base import ENDED, RunRow
from metier.store.failures import RunExists
from metier.store.schedules import Firing, ScheduleMark, ScheduleRow

type Origin = Literal["added", "file"]
_A_DAY = 86400

LATE = timedelta(seconds=60)
"""Age after which a due time that no process checked counts as missed."""
MAX_WAITING = 100
"""Maximum number of due times of a schedule that wait for an earlier run. Further ones are skipped."""
_MAX_OPEN = 10_000


class KnownSchedule(Struct, frozen=True, kw_only=True):
    """A schedule and its current state."""

    definition: ScheduleDefinition
    origin: Origin
    is_paused: bool = False
    withheld: str = ""
    """Reason why it doesn't fire although it isn't paused; empty if it fires."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def is_active(self) -> bool:
        return not self.is_paused and not self.withheld


class ScheduleHistory(Struct, frozen=True, kw_only=True):
    """A schedule's next due time, and the outcomes of past ones, latest first."""

    schedule: KnownSchedule
    next_times: Sequence[datetime] = ()
    firings: Sequence[Firing] = ()
    runs: dict[str, RunRow]
    """Runs of the firings that are still in the store, by ID."""


def read_schedule_file(host: Host) -> ScheduleFile:
    return load_schedules(host.workspace, WORKSPACE_FOLDERS)


def get_withheld(host: Host, file: ScheduleFile) -> str:
    """Return why schedules of the file don't fire; empty if they do. Those of an untrusted folder never fire."""
    if host.trust.counts("schedules", digest_bytes(file.content)):
        return ""
    if host.trust.record is None:
        return "this folder came from elsewhere and is not trusted"
    return f"{FILE_NAME} changed since you trusted this folder"


async def list_schedules(runtime: Runtime) -> list[KnownSchedule]:
    """List schedules by name. A schedule in the file overrides one in the store."""
    queue = runtime.host.settings.worker.queue
    rows = {row.name: row for row in await runtime.store.schedules.list_schedules(queue)}
    file = read_schedule_file(runtime.host)
    withheld = get_withheld(runtime.host, file) if file.schedules else ""
    found = {row.name: _read_added(row) for row in rows.values() if row.definition}
    for definition in file.schedules:
        paused = definition.name in rows and rows[definition.name].is_paused
        found[definition.name] = KnownSchedule(
            definition=definition, origin="file", is_paused=paused, withheld=withheld
        )
    return [found[name] for name in sorted(found)]


def _read_added(row: ScheduleRow) -> KnownSchedule:
    """Read an added schedule. One that can't be read, from another version, is listed but doesn't fire."""
    try:
        definition = ScheduleDefinition.model_validate_json(row.definition)
        withheld = ""
    except ValidationError as error:
        # A placeholder with any timing, so that it can be listed and removed. `withheld` keeps it from firing.
        definition = ScheduleDefinition(name=row.name, every=_A_DAY, prompt=row.definition)
        withheld = f"its definition cannot be used: {error.errors()[0]['msg']}"
    return KnownSchedule(definition=definition, origin="added", is_paused=row.is_paused, withheld=withheld)


def list_schedule_problems(host: Host) -> tuple[Problem, ...]:
    """List the problems of the file, with a warning if its schedules don't fire."""
    file = read_schedule_file(host)
    if file.schedules and not has_errors(file.problems) and (withheld := get_withheld(host, file)):
        message = f"Its schedules do not fire: {withheld}"
        problem = Problem(
            severity="warning",
            code="schedules_withheld",
            message=message,
            file=file.file,
            hint="Review it, then run `agent trust`",
        )
        return (*file.problems, problem)
    return file.problems


async def get_schedule(runtime: Runtime, name: str) -> KnownSchedule:
    """Return a schedule. Raises `UsageError` for an unknown name."""
    known = await list_schedules(runtime)
    for schedule in known:
        if schedule.name == name:
            return schedule
    names = [schedule.name for schedule in known]
    there = f"Available: {', '.join(names)}" if names else "Add one with `agent schedule add`"
    raise UsageError(f"No schedule is called {name!r}", hint=hint_nearest(name, names) or there)


async def read_history(runtime: Runtime, schedule: KnownSchedule, *, times: int, firings: int) -> ScheduleHistory:
    now = runtime.host.clock.now()
    mark = await open_mark(runtime, schedule.definition, now=now)
    queue = runtime.host.settings.worker.queue
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
    """Return the time up to which due times of a schedule are decided. A new schedule starts now."""
    # Due times have no fractions of a second, and an anchor with some would shift the times of `every`.
    moment = now.replace(microsecond=0)
    return await runtime.store.schedules.open_mark(
        ScheduleMark(
            queue=runtime.host.settings.worker.queue,
            name=definition.name,
            timing=definition.timing,
            since=moment,
            decided_to=moment,
        )
    )


def name_run(queue: str, name: str, due_at: datetime) -> str:
    """Return the run ID for a due time. It derives from the schedule, so that the store rejects a second run."""
    entropy = hashlib.sha256(f"{queue} {name} {due_at.isoformat()}".encode()).digest()[:6]
    return format_run_id(due_at, entropy)


class Fired(Struct, frozen=True, kw_only=True):
    """The result of one check of the schedules."""

    started: Sequence[Firing] = ()
    failed: Sequence[Firing] = ()
    next_due: datetime | None = None
    """Next due time of any schedule; None if there is none."""


# Any number of processes may call this concurrently; the first decision in the store counts. The run ID derives from
# the schedule and the due time. So if a process dies between decision and start, another one starts the run, and a
# second start is rejected.
async def fire_due(runtime: Runtime) -> Fired:
    """Fire due schedules once. Raises `StoreError`; the next check may succeed."""
    now = runtime.host.clock.now()
    fired: list[Firing] = []
    next_times: list[datetime] = []
    for schedule in await list_schedules(runtime):
        if not schedule.is_active:
            reason = "the schedule is paused" if schedule.is_paused else schedule.withheld
            # Otherwise they would start when the schedule is resumed or trusted again, long after they were due.
            await drop_waiting(runtime, await _get_open(runtime, schedule.name), reason=reason)
            continue
        # Read the mark before the open firings: firings of a process that moved the mark are then among them, and no
        # overlap is missed.
        mark = await open_mark(runtime, schedule.definition, now=now)
        waiting = await _get_open(runtime, schedule.name)
        decided = await _decide(runtime, schedule, mark, waiting=waiting, now=now)
        fired += await _start_waiting(runtime, schedule.definition, [*waiting, *decided])
        next_times.append(_find_next(schedule.definition, mark, now=now))
    return Fired(
        started=[each for each in fired if each.outcome == "started"],
        failed=[each for each in fired if each.outcome == "failed"],
        next_due=min(next_times, default=None),
    )


async def start_now(runtime: Runtime, schedule: KnownSchedule) -> Firing:
    """Start a run of the schedule now, regardless of times, pauses and overlaps. Raises like `Runtime.start`."""
    if schedule.withheld:
        raise UsageError(
            f"Schedule {schedule.name!r} does not run: {schedule.withheld}", hint="Review it, then run `agent trust`"
        )
    queue, now = runtime.host.settings.worker.queue, runtime.host.clock.now()
    run_id = name_run(queue, schedule.name, now)
    firing = Firing(
        queue=queue,
        name=schedule.name,
        due_at=now,
        outcome="started",
        run_id=run_id,
        reason="by hand",
        decided_at=now,
        is_open=True,
    )
    # The run first: a firing in the history always has a run.
    await _submit(runtime, schedule.definition, run_id)
    await runtime.store.schedules.put_firing(firing)
    return firing


def judge_due(
    schedule: ScheduleDefinition, due_times: Sequence[datetime], *, now: datetime, waiting: Sequence[Firing]
) -> list[tuple[datetime, str, str]]:
    """Decide about due times, oldest first: time, outcome and reason. Pure."""
    late = [due for due in due_times if now - (due + get_jitter(schedule, due)) > LATE]
    in_time = [due for due in due_times if due not in set(late)]
    # One run makes up for all missed due times. If another one is due now, that run does it.
    made_up = late[-1:] if schedule.missed == "once" and not in_time else []
    judged: list[tuple[datetime, str, str]] = []
    open_before = len(waiting)
    for due in due_times:
        if due in late and due not in made_up:
            judged.append((due, "missed", "no process was there"))
        elif open_before and schedule.overlap == "skip":
            judged.append((due, "skipped", "an earlier run has not ended"))
        elif open_before >= MAX_WAITING and schedule.overlap == "queue":
            judged.append((due, "skipped", f"{MAX_WAITING} earlier ones wait"))
        else:
            judged.append((due, "due", "made up for missed times" if due in made_up else ""))
            open_before += 1
    return judged


async def _decide(
    runtime: Runtime, schedule: KnownSchedule, mark: ScheduleMark, *, waiting: Sequence[Firing], now: datetime
) -> list[Firing]:
    """Record decisions about due times and return the firings to start; none if another process was faster."""
    due_times = list_due(schedule.definition, after=mark.decided_to, now=now, anchor=mark.since)
    if not due_times:
        return []
    firings = [
        Firing(
            queue=mark.queue,
            name=mark.name,
            due_at=due,
            outcome="due" if outcome == "due" else "skipped" if outcome == "skipped" else "missed",
            run_id=name_run(mark.queue, mark.name, due) if outcome == "due" else "",
            reason=reason,
            decided_at=now,
            is_open=outcome == "due",
        )
        for due, outcome, reason in judge_due(schedule.definition, due_times, now=now, waiting=waiting)
    ]
    if not await runtime.store.schedules.decide_due(mark, decided_to=due_times[-1], firings=firings):
        return []
    return [firing for firing in firings if firing.is_open]


async def _start_waiting(
    runtime: Runtime, definition: ScheduleDefinition, open_firings: Sequence[Firing]
) -> list[Firing]:
    """Start decided firings, oldest first, including those of a process that died before starting them."""
    settled: list[Firing] = []
    ordered = sorted(open_firings, key=lambda firing: (firing.decided_at, firing.due_at))
    replaced = ordered[:-1] if definition.overlap == "cancel" else []
    is_busy = False
    for firing in ordered:
        if firing.outcome == "started":
            if firing in replaced:
                await runtime.cancel(firing.run_id, by=f"schedule {firing.name}")
            is_busy = True
        elif firing in replaced:
            await drop_waiting(runtime, [firing], reason="a later due time took its place")
        elif not is_busy:
            settled.append(await _start(runtime, definition, firing))
            is_busy = settled[-1].outcome == "started"
    return settled


async def _start(runtime: Runtime, definition: ScheduleDefinition, firing: Firing) -> Firing:
    """Start a firing. Its run may exist already, started by another process or before a crash."""
    try:
        with suppress(RunExists):
            if await runtime.store.find_run(firing.run_id) is None:
                await _submit(runtime, definition, firing.run_id)
        settled = replace(firing, outcome="started", is_open=True)
    except StoreError:
        raise
    except MetierError as failure:
        settled = replace(firing, outcome="failed", reason=failure.sentence, is_open=False)
    await runtime.store.schedules.settle_firing(settled, was="due")
    return settled


async def _submit(runtime: Runtime, definition: ScheduleDefinition, run_id: str) -> None:
    """Create the run with the current settings for the workers of the queue."""
    host = runtime.host
    if definition.profile:
        host = host.with_runtime(profile=definition.profile)
    if definition.task:
        request = request_task(host, definition.task, dict(definition.inputs), agent=definition.agent)
        request = replace(request, run_id=run_id)
    else:
        request = RunRequest(task=definition.prompt, agent=definition.agent, run_id=run_id)
    await submit(Runtime(host, runtime.store), request, queue=host.settings.worker.queue)


async def _get_open(runtime: Runtime, name: str) -> list[Firing]:
    """Return the firings that are pending or whose run has not ended. Others are marked as settled."""
    still_open: list[Firing] = []
    queue = runtime.host.settings.worker.queue
    for firing in await runtime.store.schedules.list_firings(queue, name=name, only_open=True, limit=_MAX_OPEN):
        run = await runtime.store.find_run(firing.run_id) if firing.outcome == "started" else None
        if firing.outcome == "started" and (run is None or run.status in ENDED):
            await runtime.store.schedules.settle_firing(replace(firing, is_open=False), was="started")
        else:
            still_open.append(firing)
    return still_open


async def drop_waiting(runtime: Runtime, firings: Sequence[Firing], *, reason: str) -> None:
    """Skip due times that were decided but not started."""
    for firing in firings:
        if firing.outcome == "due":
            dropped = replace(firing, outcome="skipped", reason=reason, is_open=False)
            await runtime.store.schedules.settle_firing(dropped, was="due")


def _find_next(definition: ScheduleDefinition, mark: ScheduleMark, *, now: datetime) -> datetime:
    # Decided times stay decided, even if a clock that was ahead is set back.
    due = next(iterate_times(definition, after=max(now, mark.decided_to), anchor=mark.since))
    return due + get_jitter(definition, due)


async def add_schedule(runtime: Runtime, definition: ScheduleDefinition, *, replaces: bool = False) -> KnownSchedule:
    """Add a schedule to the store, effective from now on. Raises `UsageError`, `ConfigError`."""
    if any(known.name == definition.name and known.origin == "file" for known in await list_schedules(runtime)):
        raise UsageError(f"Schedule {definition.name!r} is defined in {FILE_NAME}", hint="Change it there")
    # Check its agent and task now, instead of when the schedule fires at night.
    if definition.agent:
        resolve_agent(runtime.host, definition.agent, model="")
    if definition.task:
        get_task(runtime.host, definition.task)
    now = runtime.host.clock.now()
    row = ScheduleRow(
        queue=runtime.host.settings.worker.queue,
        name=definition.name,
        definition=definition.model_dump_json(exclude_defaults=True),
        created_at=now,
    )
    if not await runtime.store.schedules.put_schedule(row, replace=replaces):
        raise UsageError(f"There is a schedule {definition.name!r} already", hint="Give --replace to change it")
    await open_mark(runtime, definition, now=now)
    return KnownSchedule(definition=definition, origin="added")


async def pause_schedule(runtime: Runtime, name: str, *, is_paused: bool) -> KnownSchedule:
    """Pause or resume a schedule. Due times during the pause are not made up for."""
    known = await get_schedule(runtime, name)
    now = runtime.host.clock.now()
    row = ScheduleRow(queue=runtime.host.settings.worker.queue, name=name, is_paused=is_paused, created_at=now)
    await runtime.store.schedules.pause_schedule(row, now=now)
    return KnownSchedule(definition=known.definition, origin=known.origin, is_paused=is_paused, withheld=known.withheld)


async def remove_schedule(runtime: Runtime, name: str) -> None:
    """Remove a schedule, but not its history and runs. Raises `UsageError` for one that a file defines."""
    known = await get_schedule(runtime, name)
    if known.origin == "file":
        raise UsageError(f"Schedule {name!r} is defined in {FILE_NAME}", hint="Take it out there, or pause it")
    queue = runtime.host.settings.worker.queue
    await runtime.store.schedules.delete_schedule(queue, name)
    for firing in await runtime.store.schedules.list_firings(queue, name=name, only_open=True):
        outcome = "skipped" if firing.outcome == "due" else firing.outcome
        removed = replace(firing, outcome=outcome, reason=firing.reason or "the schedule was removed", is_open=False)
        await runtime.store.schedules.settle_firing(removed, was=firing.outcome)


def schedule_as_json(history: ScheduleHistory) -> dict[str, JsonValue]:
    schedule = history.schedule
    return {
        **schedule.definition.model_dump(mode="json"),
        "origin": schedule.origin,
        "paused": schedule.is_paused,
        "withheld": schedule.withheld or None,
        "next": [moment.isoformat() for moment in history.next_times] if schedule.is_active else [],
        "firings": [
            {
                "due_at": firing.due_at.isoformat(),
                "outcome": firing.outcome,
                "run_id": firing.run_id or None,
                "status": run.status if (run := history.runs.get(firing.run_id)) else None,
                "reason": firing.reason,
            }
            for firing in history.firings
        ],
    }
