"""Drive a run for `agent run` and `agent resume`: show its progress, handle signals, and report the outcome.

Also writes the files of `--ci` and shows the plan of a dry run.
"""

import io
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import anyio
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.run.approval_dialog import Prompter, ask_about_code, ask_for_more, find_asker
from metier.cli.run.live import EVENTS, EventLines, JsonLines, Shown, ShownRun, build_live, ticking, write_answer
from metier.cli.shared.command_options import OutputFormat, get_server_url
from metier.cli.shared.open_runs import open_runs
from metier.cli.shared.output import (
    build_output_redactor,
    printable,
    ring,
    warn_line,
    write_json,
    write_json_line,
    write_line,
    write_text,
)
from metier.cli.shared.signals import passing_signals
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import LogError, UsageError, unwrapped
from metier.events.partial import Partial, PartialObserver, PartialSink
from metier.events.record import EventRecord
from metier.ids import get_user
from metier.runtime.answers import LimitRaise, RaisedLimits
from metier.runtime.cleaning import build_host_redactor, list_host_secrets
from metier.runtime.driver import DriveOptions
from metier.runtime.host import Host
from metier.runtime.records.run_folders import get_run_folder
from metier.runtime.records.signatures import issue_token
from metier.runtime.run_access import Runs
from metier.runtime.run_outcome import Plan, RunOutcome, build_outcome, last_lines
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.status import RunStatus, get_status
from metier.runtime.workspace.plugins import using_plugins
from metier.telemetry.amounts import format_cost
from metier.telemetry.console import ConsoleSink
from metier.telemetry.options import LogLevel
from metier.telemetry.redaction import Redactor
from metier.telemetry.sinks import Sink
from metier.views.ci import CiLog, get_marks, list_cases, render_junit, render_summary
from metier.views.live import LiveRun
from metier.views.painter import build_painter
from metier.views.run_view import RunView

SUMMARY_FILE = "summary.md"
JUNIT_FILE = "junit.xml"
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable with the path of the file that GitHub shows on the page of a workflow run."""


def write_ci_files(view: RunView, folder: Path, *, result: str, advice: Sequence[str], redactor: Redactor) -> None:
    """Write `summary.md` and `junit.xml`, and print their paths. If that fails, only warn: the run is recorded."""
    shown = [printable(line, redactor=redactor) for line in advice]
    summary = render_summary(view, result=printable(result, redactor=redactor), advice=shown)
    junit = render_junit(list_cases(view), suite=view.task or "agent", run_id=view.run_id)
    try:
        (folder / SUMMARY_FILE).write_text(summary, encoding="utf-8")
        (folder / JUNIT_FILE).write_text(junit, encoding="utf-8")
        if named := os.environ.get(STEP_SUMMARY):
            # Appended: other steps of the workflow write to this file too.
            with Path(named).open("a", encoding="utf-8") as stream:
                stream.write(f"{summary}\n")
    except OSError as error:
        warn_line(f"warning: The summary cannot be written: {error.strerror}")
        return
    warn_line(f"summary: {folder / SUMMARY_FILE}")
    warn_line(f"junit:   {folder / JUNIT_FILE}")


def render_plan(plan: Plan) -> str:
    return "\n".join(_render_task(plan) if "steps" in plan else _render_run(plan))


def _render_task(plan: Plan) -> list[str]:
    """Render every step with its plan, then the totals."""
    lines: list[str] = []
    for step in _rows(plan, "steps"):
        lines.append(f"step:       {step['file']}  {step['name']}  by {step['agent'] or 'the built-in agent'}")
        of_step = step["plan"]
        lines += [f"  {line}" for line in _render_run(of_step)] if isinstance(of_step, dict) else ["  no plan"]
    predicted = _section(plan, "predicted")
    price, tokens = predicted.get("cost_usd"), predicted.get("input_tokens")
    cost = _describe_price(price, predicted.get("cost_usd_at_most"))
    lines.append(f"all steps:  {'unknown' if tokens is None else tokens} tokens for one request each")
    lines.append(f"cost:       {cost} for one request each, without the results of earlier steps")
    return lines


def _describe_price(price: JsonValue, at_most: JsonValue) -> str:
    if not isinstance(price, float | int) or not isinstance(at_most, float | int):
        return "unknown"
    return f"{format_cost(price)}, at most {format_cost(at_most)}"


def _render_run(plan: Plan) -> list[str]:
    predicted = _section(plan, "predicted")
    candidates = [f"{each['skill_name']} ({each['score']})" for each in _rows(plan, "candidates")]
    files = [f"{each['path']} ({each['tokens']} tokens)" for each in _rows(plan, "disclosed")]
    price = predicted.get("request_cost_usd")
    cost = _describe_price(price, predicted.get("request_cost_usd_at_most"))
    lines = [
        f"model:      {plan['provider']}/{plan['model']}",
        f"candidates: {', '.join(candidates) or 'none'}",
        f"skill:      {plan['skill'] or 'none'}",
        f"disclosed:  {', '.join(files) or 'nothing'}",
        f"request:    {predicted['input_tokens_per_request']} tokens, {predicted['tool_schema_tokens']} of them tools",
        f"cost:       {cost} for one request",
    ]
    lines += [
        f"tool:       {tool['tool']}  {tool['verdict']}  {tool['reason']}".rstrip() for tool in _rows(plan, "tools")
    ]
    left = cast("list[str]", plan["not_loaded"])  # as `engine.model.dry_run_reply` writes it
    if left:
        lines.append(f"not loaded: the tools of {', '.join(left)}, which are known only at run time")
    return lines


def _section(plan: Plan, name: str) -> Plan:
    return cast("Plan", plan[name])  # as `engine.model.dry_run_reply` writes it


def _rows(plan: Plan, name: str) -> list[Plan]:
    return cast("list[Plan]", plan[name])  # as `engine.model.dry_run_reply` writes it


MAX_FILES_NAMED = 10

type Work = Callable[[Runtime, DriveOptions], Awaitable[RunState]]


class View(Struct, frozen=True, kw_only=True):
    """Display options of a run."""

    output: OutputFormat = "text"
    quiet: bool = False
    verbosity: int = 0
    """0: steps and warnings, 1: also details, `EVENTS`: a line per event instead."""
    timeout_seconds: float | None = None
    with_partials: bool = False
    """Add text and output that are still arriving to `stream-json`."""
    shown: Shown | None = None
    """Painter of the run; None if quiet."""
    is_ci: bool = False
    """Print grouped lines without color, and write a summary and test results to the run's folder."""


def drive_run(host: Host, work: Work, view: View) -> int:
    """Do the work until the run ends or waits, and return the exit code."""
    stoppers = _Stoppers(host.settings.runtime.signal_grace_seconds)
    shown = build_shown(view, build_host_redactor(host), level=host.settings.logging.level)
    status = anyio.run(_drive, host, work, replace(view, shown=shown), stoppers)
    exit_code = status.exit_code(signal=stoppers.current.signal)
    if host.settings.notify.bell:
        ring()
    outcome = build_outcome(status, folder=get_run_folder(host, status.run_id), exit_code=exit_code)
    redactor = build_output_redactor(list_host_secrets(host))
    token = issue_token(host, status.state, waiting=status.waiting)
    write_outcome(outcome, replace(view, shown=shown), redactor=redactor, token=token)
    if isinstance(shown, CiLog):
        advice = describe_next(outcome, has_closing_line=True)
        write_ci_files(shown.view, outcome.folder, result=outcome.result, advice=advice, redactor=redactor)
    return exit_code


def build_shown(view: View, redactor: Redactor, *, level: LogLevel = "info") -> Shown | None:
    """Build the display of a run that is followed while it is driven; None if it is quiet."""
    if view.is_ci:
        return CiLog(io.StringIO() if view.quiet else sys.stderr, get_marks(os.environ))
    if view.quiet:
        return None
    if view.verbosity >= EVENTS:
        return EventLines(sys.stderr, redactor, level=level)
    return build_live(redactor, verbosity=view.verbosity, is_text=view.output == "text")


class _Stoppers:
    """The current stopper. After a limit is raised, the run is driven again with a new one."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self.current = self._build()

    def _build(self) -> Stopper:
        return Stopper(self._grace_seconds, waits_for_model=False)

    async def ask_for_limit(self, failed: RunState, *, prompter: Prompter) -> LimitRaise | None:
        """Ask the user at the terminal whether the run continues with a higher limit."""
        # A timeout has set the old one. The new one is current before the question, so that a signal can interrupt it.
        self.current = self._build()
        raised: RaisedLimits | None = None
        with self.current.interruptible():
            raised = await ask_for_more(failed, prompter)
        return LimitRaise(limits=raised, by=get_user(), stopper=self.current) if raised is not None else None


async def _drive(host: Host, work: Work, view: View, stoppers: _Stoppers) -> RunStatus:
    shown = view.shown
    sinks: list[Sink] = [] if shown is None else [shown]
    lines = JsonLines(sys.stdout, with_partials=view.with_partials) if view.output == "stream-json" else None
    if lines is not None:
        sinks.append(lines)
    asker = find_asker()
    options = DriveOptions(
        sinks=sinks,
        observe=None if shown is None else shown.observe,
        partials=(*list_observers(shown), *([] if lines is None else lines.partials)),
        stopper=stoppers.current,
        timeout_seconds=view.timeout_seconds,
        report=warn_line,
        ask=asker,
        ask_about_code=partial(ask_about_code, prompter=asker) if asker is not None else None,
        ask_for_limit=partial(stoppers.ask_for_limit, prompter=asker) if asker is not None else None,
    )
    try:
        with unwrapped(), using_plugins(host, report=warn_line) as extended, ticking(shown):
            # Looked up for each signal: after the user raised a limit, another stopper is current.
            async with passing_signals(lambda: stoppers.current), open_runtime(extended) as runtime:
                return await get_status(runtime.store, await work(runtime, options))
    # The reader of stdout exited: the run is fine, and `main` returns the code of SIGPIPE.
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LogError(
            f"Cannot write a file of the run: {error.strerror or error} ({error.filename or 'no name'})",
            hint="Fix it, then run `agent resume latest`",
        ) from error
    # For the type checker: a context manager could suppress the exception.
    raise AssertionError("the block above returns or raises")


def list_observers(shown: Shown | None) -> list[PartialObserver]:
    """List the observers of output of running programs: the view of a run at a terminal."""
    # The text of replies arrives through `observe`, which has no delay.
    return (
        [PartialObserver(show=shown.show_partial, wants_text=False)]
        if isinstance(shown, LiveRun) and shown.is_live
        else []
    )


def build_reader(redactor: Redactor, *, verbosity: int, as_json: bool, with_partials: bool = False) -> Sink:
    """Build the sink for a watched run on stdout: its view, event lines, or JSON."""
    if as_json:
        return JsonLines(sys.stdout, with_partials=with_partials)
    if verbosity >= EVENTS:
        return ConsoleSink(sys.stdout, level="debug")
    return ShownRun(LiveRun(build_painter(sys.stdout), redactor, verbosity=verbosity))


def write_outcome(outcome: RunOutcome, view: View, *, redactor: Redactor, token: str = "") -> None:
    """Write the result to stdout, and the run's ID, status and next commands to stderr."""
    # Added without redaction: the caller needs this secret to resume the run.
    tokens = {} if outcome.is_remote else {"resume_token": token}
    match view.output:
        case "json":
            write_json(outcome.document, redactor=redactor, verbatim=tokens)
        case "stream-json":
            write_json_line({"type": "result", **outcome.document}, redactor=redactor, verbatim=tokens)
        case "text":
            _write_result(outcome, view.shown, redactor)
    # Before anything goes to stderr, so that a terminal shows the answer first.
    sys.stdout.flush()
    if isinstance(view.shown, LiveRun):
        view.shown.show_closing()
    if isinstance(view.shown, LiveRun | CiLog):
        view.shown.close()
    if outcome.has_failed:
        for line in (f"error: {outcome.message} ({outcome.reason})", *describe_cause(outcome.cause)):
            warn_line(line)
    # A waiting run prints its question even with --quiet.
    has_closing_line = isinstance(view.shown, LiveRun)
    for line in describe_waiting(outcome) if view.quiet else describe_next(outcome, has_closing_line=has_closing_line):
        warn_line(line)


def _write_result(outcome: RunOutcome, shown: Shown | None, redactor: Redactor) -> None:
    """Write the result, unless it was already shown while it arrived."""
    if outcome.plan is not None:
        write_text(render_plan(outcome.plan), redactor=redactor)
    elif not outcome.result:
        return
    elif outcome.has_output_schema:
        # Stdout has only JSON that matches the schema, or nothing.
        if outcome.has_failed:
            warn_line(printable(outcome.result, redactor=redactor))
        else:
            write_text(outcome.result, redactor=redactor)
    elif isinstance(shown, CiLog):
        write_text(outcome.result, redactor=redactor)
    elif isinstance(shown, LiveRun) and shown.shows_text:
        shown.show_answer(outcome.result)
    else:
        write_answer(printable(outcome.result, redactor=redactor))


def describe_next(outcome: RunOutcome, *, has_closing_line: bool = False) -> Sequence[str]:
    """List the run's ID and folder unless the closing line has them, its question, and the next commands."""
    lines = [] if has_closing_line else [f"run:     {outcome.run_id} is {outcome.status}, in {_short(outcome.folder)}"]
    lines += [f"step:    {step.file}  {step.state}" for step in outcome.task_steps]
    lines += describe_waiting(outcome) or _list_next(outcome)
    if outcome.is_remote:
        return lines
    artifacts = Path(outcome.paths["artifacts"])
    lines += [f"file:    {_short(file)}" for file in sorted(artifacts.glob("*"))[:MAX_FILES_NAMED]]
    return lines if has_closing_line else [*lines, f"next:    agent replay {outcome.run_id} --event-stream"]


def describe_cause(cause: str) -> list[str]:
    """Return the lines of a cause; nothing for one line, which the message already contains."""
    return [f"why:     {line}" for line in last_lines(cause)] if "\n" in cause.strip() else []


def describe_waiting(outcome: RunOutcome) -> list[str]:
    """List the run's question or approvals, and the commands that answer them."""
    if not outcome.waits_for:
        return []
    child = [f"waiting: for run {outcome.waits_for}"] if outcome.waits_for != outcome.run_id else []
    word = "failed:  " if outcome.reason == "step_failed" else "waiting: "
    return [*child, f"{word}{outcome.message}", *describe_cause(outcome.cause), *_list_next(outcome)]


def _list_next(outcome: RunOutcome) -> list[str]:
    return [f"next:    {command}" for command in outcome.next]


def _short(path: Path) -> str:
    cwd = Path.cwd()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


type SubmitRun = Callable[[Runs], Awaitable[str]]
"""Starts or answers a run and returns its ID."""


def run_in_background(
    submit: SubmitRun, view: View, *, detaches: bool, host: Host | None = None, config: Path | None = None
) -> int:
    """Print the ID of the run, or follow the run until it ends or waits. `host` is None for a server."""
    if detaches and view.output == "stream-json":
        raise UsageError("Cannot show the events of a detached run", hint="Follow it with `agent runs watch`")
    redactor = build_output_redactor()
    shown = build_shown(view, redactor) if host is None and not detaches else None
    sinks: list[Sink] = [] if shown is None else [shown]
    if view.output == "stream-json":
        sinks.append(JsonLines(sys.stdout, with_partials=view.with_partials))
    # Kept outside the coroutine: after Ctrl-C, the message still names the run.
    run_id = ""

    async def work_and_follow() -> tuple[RunOutcome, str]:
        nonlocal run_id
        async with open_runs(config, host) as runs:
            run_id = await submit(runs)
            if not detaches:
                with ticking(shown):
                    await runs.follow(run_id, _Tee(sinks))
            return await runs.get_outcome(run_id), (await runs.find(run_id)).queue

    try:
        outcome, queue = anyio.run(work_and_follow)
    except KeyboardInterrupt:
        if run_id:
            warn_line(f"run:     {run_id} continues on the server\nnext:    {_render_watch(run_id)}")
        raise
    if detaches:
        _write_detached(outcome, view, queue=queue)
        return 0
    write_outcome(outcome, replace(view, shown=shown), redactor=redactor)
    return outcome.exit_code


def _write_detached(outcome: RunOutcome, view: View, *, queue: str) -> None:
    if view.output == "json":
        # The exit code of this command, which succeeded. The run's own is not known yet.
        write_json({**outcome.document, "exit_code": 0, "queue": queue})
    else:
        write_line(outcome.run_id)
    for line in (*describe_waiting(outcome), f"next:    {_render_watch(outcome.run_id)}"):
        warn_line(line)


def _render_watch(run_id: str) -> str:
    server = f"--server {url} " if (url := get_server_url()) else ""
    return f"agent {server}runs watch {run_id}"


class _Tee:
    """Writes to several sinks and does not close them: the caller still prints the outcome there."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def write(self, record: EventRecord) -> None:
        for sink in self._sinks:
            sink.write(record)

    def show_partial(self, partial: Partial) -> None:
        for sink in self._sinks:
            if isinstance(sink, PartialSink):
                sink.show_partial(partial)

    def close(self) -> None:
        return None
