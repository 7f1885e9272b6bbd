"""Fire what is due: decide each due time once, in the store, then start its run once.

Any number of processes may call `fire_due` at any time. The one whose decision the store takes first decides; a run has
an id that follows from schedule and due time, so a process that dies between decision and start loses nothing and one
that repeats the start is refused.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from metier.dataclass import dataclass
from metier.definitions.schedule import ScheduleDefinition
from metier.definitions.schedule_times import find_jitter, iterate_times, list_due
from metier.errors import MetierError, StoreError, UsageError
from metier.runtime.children.child_runs import request_task
from metier.runtime.queue.detached import submit
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.runtime.schedules.known import KnownSchedule, list_schedules, name_run, open_mark
from metier.store.base import ENDED
from metier.store.failures import RunExists
from metier.store.schedules import Firing, ScheduleMark

LATE = timedelta(seconds=60)
"""A due time that no process looked at for so long was missed."""
MOST_WAITING = 100
"""Due times of one schedule that wait for an earlier run to end; further ones are skipped."""
_MOST_OPEN = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What one look at the schedules came to."""

    started: Sequence[Firing] = ()
    failed: Sequence[Firing] = ()
    next_due: datetime | None = None
    """When something is due next; None where nothing is."""


async def fire_due(runtime: Runtime) -> Fired:
    """Once. Raises `StoreError`; the next look may be better."""
    now = runtime.place.clock.now()
    fired: list[Firing] = []
    next_times: list[datetime] = []
    for schedule in await list_schedules(runtime):
        if not schedule.is_active:
            reason = "the schedule is paused" if schedule.is_paused else schedule.withheld
            await drop_waiting(runtime, await _find_open(runtime, schedule.name), reason=reason)
            continue
        # The mark before what is open: what moved the mark is then among what is open, and no overlap is missed.
        mark = await open_mark(runtime, schedule.definition, now=now)
        waiting = await _find_open(runtime, schedule.name)
        decided = await _decide(runtime, schedule, mark, waiting=waiting, now=now)
        fired += await _start_waiting(runtime, schedule.definition, [*waiting, *decided])
        next_times.append(_find_next(schedule.definition, mark, now=now))
    return Fired(
        started=[each for each in fired if each.outcome == "started"],
        failed=[each for each in fired if each.outcome == "failed"],
        next_due=min(next_times, default=None),
    )


async def start_now(runtime: Runtime, schedule: KnownSchedule) -> Firing:
    """Start a run of the schedule at once, whatever its times, pauses and overlaps say. Raises what starting raises."""
    if schedule.withheld:
        raise UsageError(
            f"Schedule {schedule.name!r} does not run: {schedule.withheld}", hint="Read it, then run `agent trust`"
        )
    queue, now = runtime.place.settings.worker.queue, runtime.place.clock.now()
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
    await _submit(runtime, schedule.definition, run_id)
    await runtime.store.schedules.put_firing(firing)
    return firing


def judge_due(
    schedule: ScheduleDefinition, due_times: Sequence[datetime], *, now: datetime, waiting: Sequence[Firing]
) -> list[tuple[datetime, str, str]]:
    """What becomes of due times, oldest first: the time, the outcome and the reason. Pure."""
    late = [due for due in due_times if now - (due + find_jitter(schedule, due)) > LATE]
    in_time = [due for due in due_times if due not in set(late)]
    # One run makes up for all that were missed, and one that is in time anyway is that run.
    made_up = late[-1:] if schedule.missed == "once" and not in_time else []
    judged: list[tuple[datetime, str, str]] = []
    open_before = len(waiting)
    for due in due_times:
        if due in late and due not in made_up:
            judged.append((due, "missed", "no process was there"))
        elif open_before and schedule.overlap == "skip":
            judged.append((due, "skipped", "an earlier run has not ended"))
        elif open_before >= MOST_WAITING and schedule.overlap == "queue":
            judged.append((due, "skipped", f"{MOST_WAITING} earlier ones wait"))
        else:
            judged.append((due, "due", "made up for missed times" if due in made_up else ""))
            open_before += 1
    return judged


async def _decide(
    runtime: Runtime, schedule: KnownSchedule, mark: ScheduleMark, *, waiting: Sequence[Firing], now: datetime
) -> list[Firing]:
    """The firings that are to be started; none where another process decided."""
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
    """Start what can be started, oldest first. Also what another process decided and did not live to start."""
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
    """A run that is there was started by another process, or by this one in an earlier life."""
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
    """Begin the run with today's settings, and leave it to the workers of the queue."""
    place = runtime.place
    if definition.profile:
        changed = place.settings.runtime.model_copy(update={"profile": definition.profile})
        place = replace(place, settings=place.settings.model_copy(update={"runtime": changed}))
    if definition.task:
        commission = request_task(place, definition.task, dict(definition.inputs), agent=definition.agent, model="")
        request = RunRequest(task=commission.order.task, commission=commission, run_id=run_id)
    else:
        request = RunRequest(task=definition.prompt, agent=definition.agent, run_id=run_id)
    await submit(Runtime(place, runtime.store), request, queue=place.settings.worker.queue)


async def _find_open(runtime: Runtime, name: str) -> list[Firing]:
    """Those that are to be started or whose run goes on. Where a run has ended or is gone, that is noted first."""
    still_open: list[Firing] = []
    queue = runtime.place.settings.worker.queue
    for firing in await runtime.store.schedules.list_firings(queue, name=name, only_open=True, limit=_MOST_OPEN):
        run = await runtime.store.find_run(firing.run_id) if firing.outcome == "started" else None
        if firing.outcome == "started" and (run is None or run.status in ENDED):
            await runtime.store.schedules.settle_firing(replace(firing, is_open=False), was="started")
        else:
            still_open.append(firing)
    return still_open


async def drop_waiting(runtime: Runtime, firings: Sequence[Firing], *, reason: str) -> None:
    """What was decided and not started is not started any more."""
    for firing in firings:
        if firing.outcome == "due":
            dropped = replace(firing, outcome="skipped", reason=reason, is_open=False)
            await runtime.store.schedules.settle_firing(dropped, was="due")


def _find_next(definition: ScheduleDefinition, mark: ScheduleMark, *, now: datetime) -> datetime:
    due = next(iterate_times(definition, after=max(now, mark.decided_to), anchor=mark.since))
    return due + find_jitter(definition, due)
