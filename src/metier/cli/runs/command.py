"""`agent runs`: show, follow, attach to, cancel and delete runs."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, cast

import anyio
import typer
from msgspec import to_builtins
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.run.approval_dialog import Prompter, find_asker
from metier.cli.run.driver import build_reader, describe_cause, describe_waiting, render_plan
from metier.cli.run.live import EVENTS, ShownRun, ticking
from metier.cli.run.resume import parse_inputs
from metier.cli.runs.export import export, import_file
from metier.cli.runs.list_runs import app as listing
from metier.cli.runs.replay import diff
from metier.cli.shared.command_options import (
    AsJson,
    Config,
    Events,
    IncludePartial,
    RunName,
    Verbose,
    build_group,
    check_partial,
    get_server_url,
)
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import build_local_runs, in_runtime, open_runs
from metier.cli.shared.output import (
    JsonList,
    build_output_redactor,
    printable,
    warn_line,
    write_json,
    write_line,
)
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.ids import CHILD, get_user
from metier.runtime.answers import Answer
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.history.follower import Follower, follow
from metier.runtime.history.maintenance import Rebuilt, Retention, delete_old_runs, list_old_runs, rebuild_events
from metier.runtime.history.undo import StepChanges, read_changes
from metier.runtime.records.index_rows import get_shown_status
from metier.runtime.run_outcome import RunOutcome, describe_work
from metier.runtime.runs import Runtime
from metier.runtime.status import FAILED, get_status
from metier.store.base import RunRow
from metier.telemetry.amounts import format_cost, format_count
from metier.telemetry.redaction import Redactor
from metier.telemetry.sinks import Sink
from metier.views.live import LiveRun
from metier.views.painter import build_painter
from metier.views.run_view import RunView
from metier.views.user_question import UserQuestion

app = build_group("List, show, watch and manage runs.")

app.registered_commands += listing.registered_commands
app.command("export")(export)
app.command("import")(import_file)
app.command("diff")(diff)

MAX_DAYS = 100_000
"""Keeps the cut-off date within the range of `datetime`."""
_PROGRESS = 5000
"""Deleted runs between two progress lines on stderr."""


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


def _write_files(steps: list[dict[str, JsonValue]]) -> None:
    for step in steps:
        for artifact in cast("list[dict[str, JsonValue]]", step.get("artifacts") or []):
            write_line(f"file:    {artifact['path']}  {artifact['bytes']} bytes")


def _write_view(live: LiveRun, view: RunView, outcome: RunOutcome) -> None:
    """Print the steps and the result of a run. Steps of a task are runs themselves and are listed elsewhere."""
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
    write_line(f"turns:   {view.total_turns}; {tokens}; {format_cost(usage.known_cost_usd)}")
    if outcome.has_failed:
        for line in (f"failed:  {outcome.reason}: {outcome.message}", *describe_cause(outcome.cause)):
            write_line(line)
    for line in (*_describe_parent(row), *describe_work(outcome)):
        write_line(line)
    if not outcome.task_steps:
        _write_files(cast("list[dict[str, JsonValue]]", record.get("steps", [])))  # `build_record` writes it like this
    if not outcome.is_remote:
        write_line(f"folder:  {outcome.folder}")
    for line in describe_waiting(outcome):
        write_line(line)
    if get_shown_status(row) == "interrupted":
        write_line(f"next:    agent resume {row.run_id}")


def show_changes(run: str, *, as_json: bool, config: Path | None) -> None:
    """Print the file changes of each step, or why they are unknown. Steps without changes are omitted."""

    async def read(runtime: Runtime) -> list[StepChanges]:
        return await read_changes(runtime, (await runtime.find(run)).run_id)

    steps = in_runtime(open_host(config), read)
    if as_json:
        write_json(to_builtins(steps))
        return
    for step in steps:
        unknown = f", unknown changes: {step.unknown}" if step.unknown else ""
        write_line(f"step {step.step}: {step.tool}{unknown}")
        for path, change in step.changes.items():
            write_line(printable(change).rstrip() or f"{printable(path)}: mode changed")
    if not steps:
        write_line("No files changed")


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

    async def work() -> RunOutcome:
        async with open_runs(config) as runs:
            run_id = (await runs.find(run)).run_id
            with ticking(sink):
                await runs.follow(run_id, sink)
            return await runs.get_outcome(run_id)

    return _close(sink, anyio.run(work))


def _close(sink: Sink, outcome: RunOutcome) -> int:
    """Show the end of a followed run and return its exit code."""
    if isinstance(sink, ShownRun):
        sink.answer = outcome.result
    sink.close()
    if outcome.status == "in_progress":
        # The log ended although the run did not: its process was killed.
        warn_line(f"This run's process is gone; resume it with `agent resume {outcome.run_id}`")
        return FAILED
    return outcome.exit_code


@app.command()
def attach(run: RunName, *, verbose: Verbose = 0, events: Events = False, config: Config = None) -> int:
    """Follow a run and answer its questions.

    Without a terminal it asks nothing. Exit codes are those of `agent run`.
    """
    host = open_host(config)
    sink = build_reader(build_host_redactor(host), verbosity=EVENTS if events else verbose, as_json=False)
    prompter = find_asker()

    async def work(runtime: Runtime) -> RunOutcome:
        run_id = (await runtime.find(run)).run_id
        # One follower for the whole loop, because it knows which events were shown before an answer.
        with closing(Follower(runtime, run_id)) as follower:
            while True:
                with ticking(sink):
                    await follow(follower, sink)
                state = await runtime.read(run_id)
                if state.phase in FINAL or prompter is None or not await answer_run(runtime, state, prompter):
                    return await build_local_runs(runtime, None).get_outcome(run_id)

    return _close(sink, in_runtime(host, work))


async def answer_run(runtime: Runtime, state: RunState, prompter: Prompter) -> bool:
    """Ask the user the run's question and let a worker continue. Returns False if nothing was answered."""
    status = await get_status(runtime.store, state)
    owner = await runtime.get_started(state.run_id)
    # Without a queue, no worker would continue the run after the answer.
    if not status.pause or not owner.queue:
        return False
    if status.pause == "approval":
        question = await runtime.approvals.get(status.approval_ids[0])
        reply = await prompter(question)
        if reply is None:
            return False
        await runtime.approvals.decide(question, reply)
        await build_local_runs(runtime, None).continue_decided(status.waiting.run_id)
    elif status.pause == "input" and status.question is not None:
        answer = await _ask(status.question, prompter)
        if answer is None:
            return False
        await build_local_runs(runtime, None).answer(owner.run_id, answer)
    else:
        return False
    return True


async def _ask(question: UserQuestion, prompter: Prompter) -> Answer | None:
    warn_line(question.text)
    try:
        given = [f"{name}={await prompter.read_line(f'{name}> ')}" for name in question.names]
    except (EOFError, KeyboardInterrupt):
        return None
    return Answer(values=parse_inputs(given, question.fields), by=get_user())


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


def build_reader_redactor(config: Path | None) -> Redactor:
    """Build the redactor for a run that is only shown. A server redacts by itself."""
    return build_output_redactor() if get_server_url() else build_host_redactor(open_host(config))


@app.command("gc")
def collect(
    *,
    keep: Annotated[int | None, typer.Option("--keep", min=0, help="Keep the newest N ended runs.")] = None,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", min=0, max=MAX_DAYS, help="Delete runs that ended more than N days ago."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs without deleting them.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Delete ended runs."""
    if keep is None and older_than is None:
        raise UsageError("No runs selected", hint="Add --keep N or --older-than DAYS")

    wanted = Retention(keep=keep or 0, older_than_days=older_than)
    shown = _Deleted(dry_run=dry_run, as_json=as_json)

    async def work(runtime: Runtime) -> None:
        if not dry_run:
            await delete_old_runs(runtime, wanted, tell=shown.tell)
            return
        async for page in list_old_runs(runtime, wanted):
            shown.tell([row.run_id for row in page])

    in_runtime(open_host(config), work)
    shown.close()


class _Deleted:
    """Print the IDs of deleted runs and their number."""

    def __init__(self, *, dry_run: bool, as_json: bool) -> None:
        self._dry_run = dry_run
        self._count = 0
        self._list: JsonList | None = None
        if as_json:
            opening = f'{{\n  "dry_run": {json.dumps(dry_run)},\n  "deleted": '
            self._list = JsonList(opening=opening, closing="\n}")

    def tell(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            if self._list is None:
                write_line(run_id)
            else:
                self._list.add(run_id)
        before, self._count = self._count, self._count + len(run_ids)
        # A page can end anywhere between two multiples.
        if before // _PROGRESS != self._count // _PROGRESS:
            warn_line(f"{self._describe()} so far")

    def _describe(self) -> str:
        verb = "would be" if self._dry_run else "was" if self._count == 1 else "were"
        return f"{format_count(self._count, 'run')} {verb} deleted"

    def close(self) -> None:
        if self._list is None:
            warn_line(self._describe())
        else:
            self._list.close()


@app.command(rich_help_panel="Advanced")
def rebuild(run: RunName, *, as_json: AsJson = False, config: Config = None) -> None:
    """Rebuild a run's event log from its journal."""

    async def work(runtime: Runtime) -> tuple[str, Rebuilt]:
        row = await runtime.find(run)
        return row.run_id, await rebuild_events(runtime, row.run_id)

    run_id, rebuilt = in_runtime(open_host(config), work)
    if as_json:
        write_json({"run_id": run_id, "events": rebuilt.events, "lost": rebuilt.lost})
        return
    write_line(f"{run_id}: {format_count(rebuilt.events, 'event')} rebuilt from the journal")
    if rebuilt.lost:
        warn_line(f"note: {format_count(rebuilt.lost, 'informational event')} (retries, budgets, signals) lost")
