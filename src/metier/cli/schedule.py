"""`agent schedule`: manage scheduled runs."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import anyio
import typer

from metier.cli.shared.command_options import AsJson, Config, build_group
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import notify_workers
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.task import parse_inputs
from metier.definitions.schedule import build_schedule
from metier.errors import unwrapped
from metier.runtime.host import Host
from metier.runtime.queue.scheduler import (
    KnownSchedule,
    ScheduleHistory,
    add_schedule,
    get_schedule,
    list_schedule_problems,
    list_schedules,
    pause_schedule,
    read_history,
    remove_schedule,
    schedule_as_json,
    start_now,
)
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.store.schedules import Firing

app = build_group("Manage scheduled runs.")

Name = Annotated[str, typer.Argument(help="Schedule name.")]


@app.command()
def add(
    name: Name,
    prompt: Annotated[str, typer.Argument(help="Task to run.")] = "",
    *,
    cron: Annotated[
        str, typer.Option("--cron", help="Cron expression: five fields, six with seconds, or @daily.")
    ] = "",
    every: Annotated[str, typer.Option("--every", help="Interval, such as 90s, 15m, 2h or 1d.")] = "",
    timezone: Annotated[str, typer.Option("--timezone", help="Time zone of --cron.")] = "UTC",
    task: Annotated[str, typer.Option("--task", help="Task ID, instead of a prompt.")] = "",
    inputs: Annotated[list[str] | None, typer.Option("--input", help="Task input as name=value (repeatable).")] = None,
    agent: Annotated[str, typer.Option("--agent", help="Agent ID.")] = "",
    profile: Annotated[
        Literal["permissive", "guarded", "strict"] | None,
        typer.Option("--profile", help="Default when no rule matches."),
    ] = None,
    overlap: Annotated[
        Literal["skip", "queue", "cancel"],
        typer.Option("--overlap", help="If the previous run is still active: skip, wait, cancel."),
    ] = "skip",
    missed: Annotated[
        Literal["skip", "once"], typer.Option("--missed", help="Missed times: skip them, or run once.")
    ] = "skip",
    jitter: Annotated[str, typer.Option("--jitter", help="Maximum random delay, such as 30s or 5m.")] = "0s",
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing schedule.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Add a schedule."""
    definition = build_schedule(
        {
            "name": name,
            "prompt": prompt,
            "cron": cron,
            "every": every or "0s",
            "timezone": timezone,
            "task": task,
            "inputs": parse_inputs(inputs or []),
            "agent": agent,
            "profile": profile or "",
            "overlap": overlap,
            "missed": missed,
            "jitter": jitter,
        }
    )

    async def work(runtime: Runtime) -> ScheduleHistory:
        known = await add_schedule(runtime, definition, replaces=replace)
        return await read_history(runtime, known, times=3, firings=0)

    added = _in_runtime(open_host(config), work)
    if as_json:
        write_json(schedule_as_json(added))
        return
    write_line(f"added:   {name}  {definition.timing}")
    for line in _describe_next(added):
        write_line(line)
    warn_line("It runs while `agent worker` or `agent serve` is active in this workspace")


@app.command("list")
def list_all(*, as_json: AsJson = False, config: Config = None) -> int:
    """List schedules with their next run.

    Exit code 1: `.agent/schedules.yaml` has an error.
    """
    host = open_host(config)

    async def work(runtime: Runtime) -> list[ScheduleHistory]:
        return [await read_history(runtime, known, times=1, firings=1) for known in await list_schedules(runtime)]

    problems = list_schedule_problems(host)
    found = _in_runtime(host, work)
    if as_json:
        write_json([schedule_as_json(history) for history in found])
    for history in [] if as_json else found:
        schedule = history.schedule
        last = _describe_firing(history.firings[0], history) if history.firings else "never run"
        write_line(f"{schedule.name}  {schedule.definition.timing}  {_describe_state(history)}  {last}")
    for problem in problems:
        warn_line(problem.render())
    if not found and not problems:
        warn_line("No schedules; add one with `agent schedule add`")
    return 1 if any(problem.severity == "error" for problem in problems) else 0


@app.command()
def show(name: Name, *, as_json: AsJson = False, config: Config = None) -> None:
    """Show a schedule with its upcoming and latest runs."""

    async def work(runtime: Runtime) -> ScheduleHistory:
        return await read_history(runtime, await get_schedule(runtime, name), times=5, firings=10)

    history = _in_runtime(open_host(config), work)
    if as_json:
        write_json(schedule_as_json(history))
        return
    schedule, definition = history.schedule, history.schedule.definition
    write_line(f"schedule: {schedule.name}  {definition.timing}  {_describe_state(history)}")
    write_line(f"does:     {f'task {definition.task}' if definition.task else definition.prompt}")
    write_line(f"overlap:  {definition.overlap}   missed: {definition.missed}   jitter: {definition.jitter} s")
    for line in _describe_next(history):
        write_line(line)
    for firing in history.firings:
        write_line(f"{_in_zone(firing.due_at, schedule)}  {_describe_firing(firing, history)}")


@app.command()
def pause(name: Name, *, config: Config = None) -> None:
    """Pause a schedule. Active runs continue."""
    _in_runtime(open_host(config), lambda runtime: pause_schedule(runtime, name, is_paused=True))
    write_line(f"paused:  {name}")


@app.command()
def resume(name: Name, *, config: Config = None) -> None:
    """Resume a paused schedule."""
    _in_runtime(open_host(config), lambda runtime: pause_schedule(runtime, name, is_paused=False))
    write_line(f"resumed: {name}")


@app.command()
def remove(name: Name, *, config: Config = None) -> None:
    """Remove a schedule. Its runs stay."""
    _in_runtime(open_host(config), lambda runtime: remove_schedule(runtime, name))
    write_line(f"removed: {name}")


@app.command("run-now")
def run_now(name: Name, *, as_json: AsJson = False, config: Config = None) -> None:
    """Start a scheduled run now, in the background."""
    host = open_host(config)

    async def work(runtime: Runtime) -> Firing:
        return await start_now(runtime, await get_schedule(runtime, name))

    started = _in_runtime(host, work)
    notify_workers(host, started.run_id, queue=started.queue, config=config)
    if as_json:
        write_json({"schedule": name, "run_id": started.run_id})
    else:
        write_line(started.run_id)
    warn_line(f"next:    agent runs watch {started.run_id}")


def _in_runtime[T](host: Host, work: Callable[[Runtime], Awaitable[T]]) -> T:
    async def inside() -> T:
        with unwrapped(), using_plugins(host, report=warn_line) as extended:
            async with open_runtime(extended) as runtime:
                return await work(runtime)
        raise AssertionError("the block above returns or raises")

    return anyio.run(inside)


def _describe_state(history: ScheduleHistory) -> str:
    schedule = history.schedule
    if schedule.is_paused:
        return "paused"
    if schedule.withheld:
        return f"disabled: {schedule.withheld}"
    return f"next {_in_zone(history.next_times[0], schedule)}"


def _describe_next(history: ScheduleHistory) -> list[str]:
    if not history.schedule.is_active:
        return []
    return [f"next:     {_in_zone(moment, history.schedule)}" for moment in history.next_times]


def _describe_firing(firing: Firing, history: ScheduleHistory) -> str:
    run = history.runs.get(firing.run_id)
    status = "" if firing.outcome != "started" else run.status if run else "deleted"
    parts = (firing.outcome, firing.run_id if firing.outcome == "started" else "", status, firing.reason)
    return "  ".join(part for part in parts if part)


def _in_zone(moment: datetime, schedule: KnownSchedule) -> str:
    zone = ZoneInfo(schedule.definition.timezone)
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
