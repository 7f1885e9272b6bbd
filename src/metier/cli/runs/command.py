"""`agent runs`: which runs there are, how one stands, what it does right now, and how to end it."""

import sys
from pathlib import Path
from typing import Annotated, cast

import anyio
import typer
from msgspec import to_builtins
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.run.driver import build_reader, describe_cause, describe_waiting, render_plan
from metier.cli.run.live import EVENTS, ShownRun, ticking
from metier.cli.runs.attach import attach as attach_live
from metier.cli.runs.diff import attach as attach_diff
from metier.cli.runs.export import attach as attach_export
from metier.cli.runs.gc import attach as attach_upkeep
from metier.cli.runs.list_runs import app as listing
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import open_runs
from metier.cli.shared.options import (
    AsJson,
    CommandGroup,
    Config,
    Events,
    IncludePartial,
    RunName,
    Verbose,
    check_partial,
)
from metier.cli.shared.output import build_output_redactor, printable, write_json, write_line
from metier.cli.shared.server_choice import get_server_url
from metier.ids import CHILD
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.history.undo import StepChanges, read_changes
from metier.runtime.records.index_rows import get_shown_status, render_cost
from metier.runtime.run_outcome import RunOutcome, describe_work
from metier.runtime.runs import open_runtime
from metier.runtime.status import FAILED
from metier.store.base import RunRow
from metier.telemetry.redaction import Redactor
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

    async def read() -> tuple[RunRow, RunOutcome, RunView, dict[str, JsonValue]]:
        async with open_runs(config) as runs:
            row = await runs.find(run)
            outcome = await runs.get_outcome(row.run_id)
            return row, outcome, await runs.get_view(row.run_id), await runs.get_record(row.run_id)

    row, outcome, view, record = anyio.run(read)
    if as_json:
        write_json(record)
    else:
        _write_run(row, outcome, view, record)
        _write_view(LiveRun(build_painter(sys.stdout), build_reader_redactor(config)), view, outcome)


@app.command()
def watch(
    run: RunName,
    *,
    verbose: Verbose = 0,
    events: Events = False,
    as_json: AsJson = False,
    include_partial: IncludePartial = False,
    config: Config = None,
) -> int:
    """Follow a run until it ends or pauses."""
    check_partial("stream-json" if as_json else "text", include_partial=include_partial)
    redactor, verbosity = build_reader_redactor(config), EVENTS if events else verbose
    sink = build_reader(redactor, verbosity=verbosity, as_json=as_json, with_partials=include_partial)

    async def follow() -> RunOutcome:
        async with open_runs(config) as runs:
            run_id = (await runs.find(run)).run_id
            with ticking(sink):
                await runs.follow(run_id, sink)
            outcome = await runs.get_outcome(run_id)
            if isinstance(sink, ShownRun):
                sink.answer = outcome.result
            sink.close()
            return outcome

    outcome = anyio.run(follow)
    if outcome.status == "in_progress":
        sys.stderr.write(f"This run's process is gone; resume it with `agent resume {outcome.run_id}`\n")
        return FAILED
    return outcome.exit_code


@app.command()
def cancel(run: RunName, *, as_json: AsJson = False, config: Config = None) -> None:
    """Cancel a run."""

    async def end() -> tuple[str, str]:
        async with open_runs(config) as runs:
            run_id = (await runs.find(run)).run_id
            return run_id, await runs.cancel(run_id)

    run_id, status = anyio.run(end)
    if as_json:
        write_json({"run_id": run_id, "status": status})
    else:
        write_line(f"{run_id} is {status}")


def _write_files(steps: list[dict[str, JsonValue]]) -> None:
    for step in steps:
        for artifact in cast("list[dict[str, JsonValue]]", step.get("artifacts") or []):
            write_line(f"file:    {artifact['path']}  {artifact['bytes']} bytes")


def _write_view(live: LiveRun, view: RunView, outcome: RunOutcome) -> None:
    """Print the view of a finished run as it was shown live; the steps of a task are runs of their own."""
    result = outcome.result if outcome.plan is None else render_plan(outcome.plan)
    if view.items or result:
        write_line()
    if not outcome.task_steps:
        live.show_all(replace(view, children=()))
    live.show_answer(result)
    live.close()


def _describe_parent(row: RunRow) -> list[str]:
    """Describe the origin of the run: another run, or the conversation of a Python program."""
    if row.parent_run_id:
        return [f"parent:  {row.parent_run_id}"]
    is_called = row.run_id.startswith(CHILD) and row.context_id != row.run_id
    return [f"for:     conversation {row.context_id}"] if is_called else []


def _write_run(row: RunRow, outcome: RunOutcome, view: RunView, record: dict[str, JsonValue]) -> None:
    write_line(f"run:     {row.run_id}  {get_shown_status(row)}")
    write_line(f"task:    {row.task}")
    write_line(f"agent:   {row.agent or 'built in'}")
    if row.driver:
        write_line(f"process: {row.driver}")
    if view.provider:
        write_line(f"model:   {view.provider}/{view.model}, profile {view.profile}")
    usage = view.total_usage
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    write_line(f"turns:   {view.total_turns}; {tokens}; {render_cost(usage.known_cost_usd)}")
    if outcome.has_failed:
        for line in (f"failed:  {outcome.reason}: {outcome.message}", *describe_cause(outcome.cause)):
            write_line(line)
    for line in (*_describe_parent(row), *describe_work(outcome)):
        write_line(line)
    if not outcome.task_steps:
        _write_files(cast("list[dict[str, JsonValue]]", record.get("steps", [])))  # as `build_record` makes them
    if not outcome.is_remote:
        write_line(f"folder:  {outcome.folder}")
    for line in describe_waiting(outcome):
        write_line(line)
    if get_shown_status(row) == "interrupted":
        write_line(f"next:    agent resume {row.run_id}")


def build_reader_redactor(config: Path | None) -> Redactor:
    """Build the redactor for a run that is only shown. A server redacts by itself."""
    return build_output_redactor() if get_server_url() else build_host_redactor(open_host(config))
