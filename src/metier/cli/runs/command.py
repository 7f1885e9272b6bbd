"""`agent runs`: which runs there are, how one stands, what it does right now, and how to end it."""

import sys
from pathlib import Path
from typing import Annotated, cast

import anyio
import typer
from msgspec import to_builtins
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.run.driver import build_reader, describe_cause, describe_waiting
from metier.cli.run.live import EVENTS, ticking
from metier.cli.runs.attach import attach as attach_live
from metier.cli.runs.attach import follow_run
from metier.cli.runs.diff import attach as attach_diff
from metier.cli.runs.export import attach as attach_export
from metier.cli.runs.gc import attach as attach_upkeep
from metier.cli.runs.list_runs import app as listing
from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import AsJson, CommandGroup, Config, Events, RunName, Verbose
from metier.cli.shared.output import printable, write_json, write_line
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.errors import MetierError, UsageError
from metier.ids import CHILD, get_user
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.history.run_views import read_history, read_run_view
from metier.runtime.history.undo import StepChanges, read_changes
from metier.runtime.notify.delivery import deliver_last
from metier.runtime.records.index_rows import get_shown_status, render_cost, row_as_json
from metier.runtime.records.record import build_record
from metier.runtime.records.run_folders import get_run_folder
from metier.runtime.run_outcome import build_outcome, describe_work, last_lines, work_as_json
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.status import RunStatus, get_status
from metier.store.base import ENDED, RunRow
from metier.views.live import LiveRun
from metier.views.painter import build_painter
from metier.views.run_view import RunView


def show_changes(run: str, *, as_json: bool, config: Path | None) -> None:
    """Steps without a change are left out; one whose changes are not known says why."""
    told = anyio.run(_read, run, config)
    if as_json:
        write_json([to_builtins(step) for step in told])
        return
    for step in told:
        write_line(f"step {step.step}: {step.tool}{_mark(step.unknown)}")
        for path, diff in step.changes.items():
            write_line(printable(diff).rstrip() or f"{printable(path)}: mode changed")
    if not told:
        write_line("No files changed")


def _mark(unknown: str) -> str:
    return f", unknown changes: {unknown}" if unknown else ""


async def _read(name: str, config: Path | None) -> list[StepChanges]:
    async with open_runtime(open_host(config)) as runtime:
        return await read_changes(runtime, (await runtime.find(name)).run_id)


app = typer.Typer(
    cls=CommandGroup,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List, show, watch and manage runs.",
)

app.registered_commands += listing.registered_commands
for attach in (attach_live, attach_export, attach_diff, attach_upkeep):
    attach(app)

CANCEL_SECONDS = 20.0
"""How long `cancel` waits for the driver to obey: its grace period, and time to write down the end."""


@app.command()
def show(
    run: RunName,
    *,
    changes: Annotated[bool, typer.Option("--changes", help="Show each step's file changes as diffs.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show a run's status, steps and cost."""
    if changes:
        show_changes(run, as_json=as_json, config=config)
        return

    host = open_host(config)

    async def read() -> tuple[RunStatus, dict[str, JsonValue], RunView]:
        async with open_runtime(host) as runtime:
            row = await runtime.find(run)
            entries = await read_history(runtime, row.run_id)
            state = fold(row.run_id, entries)
            record = build_record(entries, state, now=row.updated_at) if state.started else {}
            return await get_status(runtime.store, state, row=row), record, await _read_view(runtime, row.run_id)

    status, record, view = anyio.run(read)
    row, folder = status.row, get_run_folder(host, status.run_id)
    if as_json:
        waits: JsonValue = None
        if status.pause:
            waits = {"kind": status.pause, "reason": status.pause_reason, "run_id": status.waits_for}
        more: dict[str, JsonValue] = {"cause": "\n".join(last_lines(status.cause)), "waits_for": waits}
        write_json({**row_as_json(row), **record, **work_as_json(status), **more, "folder": str(folder)})
    else:
        _write_run(status, record, view, folder=folder)
        _write_view(LiveRun(build_painter(sys.stdout), build_host_redactor(host)), view, status)


@app.command()
def watch(
    run: RunName, *, verbose: Verbose = 0, events: Events = False, as_json: AsJson = False, config: Config = None
) -> int:
    """Follow a run until it ends or pauses."""
    host = open_host(config)
    sink = build_reader(host, verbosity=EVENTS if events else verbose, as_json=as_json)

    async def follow() -> int:
        async with open_runtime(host) as runtime:
            with ticking(sink):
                return await follow_run(runtime, (await runtime.find(run)).run_id, sink)

    return anyio.run(follow)


@app.command()
def cancel(run: RunName, *, as_json: AsJson = False, config: Config = None) -> None:
    """Cancel a run."""

    async def end() -> RunState:
        async with open_runtime(open_host(config)) as runtime:
            row = await runtime.find(run)
            if row.status in ENDED:
                raise UsageError(f"Run {row.run_id!r} is already {row.status}")
            return await _cancel(runtime, row.run_id)

    state = anyio.run(end)
    if as_json:
        write_json({"run_id": state.run_id, "status": state.status})
    else:
        write_line(f"{state.run_id} is {state.status}")


async def _cancel(runtime: Runtime, run_id: str) -> RunState:
    """Asked again, because a driver may let go of the run before it hears of it; then it is ended here."""
    with anyio.move_on_after(CANCEL_SECONDS):
        while True:
            state = await runtime.cancel(run_id, by=get_user())
            if state.phase in FINAL:
                await deliver_last(runtime.host, runtime.store)
                return state
            await anyio.sleep(0.2)
    row = await runtime.find(run_id)
    raise MetierError(
        f"Run {run_id!r} was asked to stop, and {row.driver or 'its driver'!r} has not answered yet",
        hint=f"Follow it with `agent runs watch {run_id}`",
    )


async def _read_view(runtime: Runtime, run_id: str) -> RunView:
    """The run with all of its child runs, whose turns and tokens count."""
    return await read_run_view(runtime, run_id, max_children=None)


def _write_files(steps: list[dict[str, JsonValue]]) -> None:
    for step in steps:
        for artifact in cast("list[dict[str, JsonValue]]", step.get("artifacts") or []):
            write_line(f"file:    {artifact['path']}  {artifact['bytes']} bytes")


def _write_view(live: LiveRun, view: RunView, status: RunStatus) -> None:
    """What happened, as a run shows it while it does; the steps of a task are runs of their own."""
    if view.items or status.state.result:
        write_line()
    if not status.state.plan:
        live.show_all(replace(view, children=()))
    live.show_answer(status.state.result)
    live.close()


def _describe_parent(row: RunRow) -> list[str]:
    """Who ordered it: another run, or the conversation of a Python program."""
    if row.parent_run_id:
        return [f"parent:  {row.parent_run_id}"]
    is_called = row.run_id.startswith(CHILD) and row.context_id != row.run_id
    return [f"for:     conversation {row.context_id}"] if is_called else []


def _write_run(status: RunStatus, record: dict[str, JsonValue], view: RunView, *, folder: Path) -> None:
    row, state = status.row, status.state
    write_line(f"run:     {row.run_id}  {get_shown_status(row)}")
    write_line(f"task:    {row.task}")
    write_line(f"agent:   {row.agent or 'built in'}")
    if row.driver:
        write_line(f"process: {row.driver}")
    if state.started is not None:
        write_line(f"model:   {state.started.provider}/{state.started.model}, profile {state.started.profile}")
    usage = view.total_usage
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    write_line(f"turns:   {view.total_turns}; {tokens}; {render_cost(usage.known_cost_usd)}")
    if state.failure is not None:
        for line in (f"failed:  {state.failure.reason}: {state.failure.message}", *describe_cause(status.cause)):
            write_line(line)
    for line in (*_describe_parent(row), *describe_work(status)):
        write_line(line)
    _write_files(
        [] if state.plan else cast("list[dict[str, JsonValue]]", record.get("steps", []))
    )  # as build_record makes them
    write_line(f"folder:  {folder}")
    for line in describe_waiting(build_outcome(status, folder=folder, exit_code=status.exit_code())):
        write_line(line)
    if get_shown_status(row) == "interrupted":
        write_line(f"next:    agent resume {row.run_id}")
