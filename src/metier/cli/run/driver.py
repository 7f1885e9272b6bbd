"""The driver that `run` and `resume` share: drive a run that the user can watch and stop, then report its state.

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
from metier.cli.shared.options import OutputFormat
from metier.cli.shared.output import (
    build_output_redactor,
    printable,
    ring,
    warn_line,
    write_json,
    write_json_line,
    write_text,
)
from metier.cli.shared.signals import passing_signals
from metier.definitions.nearest import hint_nearest
from metier.engine.projection import list_task_steps
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import LogError, unwrapped
from metier.ids import get_user
from metier.providers.facts import load_facts
from metier.runtime.cleaning import build_host_redactor, list_host_secrets
from metier.runtime.driver import DriveOptions
from metier.runtime.host import Host
from metier.runtime.questions.answers import ACCEPT
from metier.runtime.questions.resumption import LimitRaise, RaisedLimits, render_command
from metier.runtime.records.run_folders import get_run_folder
from metier.runtime.records.signatures import issue_token
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.status import (
    Plan,
    RunStatus,
    build_outcome,
    get_status,
    last_lines,
    parse_plan,
)
from metier.runtime.workspace.plugins import using_plugins
from metier.telemetry.console import ConsoleSink
from metier.telemetry.redaction import Redactor
from metier.telemetry.sinks import Sink
from metier.views.ci import CiLog, get_marks, list_cases, render_junit, render_summary
from metier.views.live import LiveRun
from metier.views.painter import build_painter
from metier.views.run_view import RunView
from metier.views.user_question import DEFAULT_FIELD

SUMMARY_FILE = "summary.md"
JUNIT_FILE = "junit.xml"
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file that GitHub shows on the page of a workflow run."""


def write_ci_files(view: RunView, folder: Path, *, result: str, advice: Sequence[str], redactor: Redactor) -> None:
    """Say where they are. A file that cannot be written is a warning: the run itself is on record."""
    shown = [printable(line, redactor=redactor) for line in advice]
    summary = render_summary(view, result=printable(result, redactor=redactor), advice=shown)
    junit = render_junit(list_cases(view), suite=view.task or "agent", run_id=view.run_id)
    try:
        (folder / SUMMARY_FILE).write_text(summary, encoding="utf-8")
        (folder / JUNIT_FILE).write_text(junit, encoding="utf-8")
        if named := os.environ.get(STEP_SUMMARY):
            with Path(named).open("a", encoding="utf-8") as stream:
                stream.write(f"{summary}\n")
    except OSError as error:
        warn_line(f"warning: The summary cannot be written: {error.strerror}")
        return
    warn_line(f"summary: {folder / SUMMARY_FILE}")
    warn_line(f"junit:   {folder / JUNIT_FILE}")


def suggest(state: RunState, *, run_id: str) -> list[str]:
    """`state` is the run that failed, `run_id` the one that a person started: the same, or one above it."""
    advice = _get_advice(state, run_id)
    return [f"next:    {advice}"] if advice else []


def _get_advice(state: RunState, run_id: str) -> str:
    if state.failure is None:
        return ""
    if state.failure.reason == "not_found":
        return _hint_model(state, run_id)
    if state.failure.reason == "prompt_too_large":
        return f"raise `model.max_context_tokens` in agent.yaml or offer fewer tools, then run `agent resume {run_id}`"
    return render_command(state, run_id) or _BY_REASON.get(state.failure.reason, "")


def _hint_model(state: RunState, run_id: str) -> str:
    """A provider that does not have a model was asked for one that is nearly the name of another."""
    started = state.started
    known = [name.rstrip("*") for name in load_facts().entries.get(started.provider, {})] if started else []
    hint = hint_nearest(started.model, [name for name in known if name]) if started else ""
    return f"{hint or 'Check the name of the model.'} Run `agent resume {run_id} --model NAME`"


_BY_REASON = {
    "no_skill": 'run `agent skills route "…"` to see matching skills, or use a model (`--provider`, `--model`)',
    "skill_timeout": "raise the skill's `timeout_seconds`, or split the task",
    "skill_blocked": "see the rejected call with `agent runs show`; change the skill's contract or the rules",
    "skill_escalated": "the skill gave up: read its message, then run it again with the missing input",
}


def render_plan(plan: Plan) -> str:
    return "\n".join(_render_task(plan) if "steps" in plan else _render_run(plan))


def _render_task(plan: Plan) -> list[str]:
    """Every step with what a run of it foresees, then what they take together."""
    lines: list[str] = []
    for step in _rows(plan, "steps"):
        lines.append(f"step:       {step['file']}  {step['name']}  by {step['agent'] or 'the built-in agent'}")
        own = step["plan"]
        lines += [f"  {line}" for line in _render_run(own)] if isinstance(own, dict) else ["  no plan"]
    predicted = _section(plan, "predicted")
    price, tokens = predicted.get("cost_usd"), predicted.get("input_tokens")
    cost = "unknown" if price is None else f"{price} USD, at most {predicted['cost_usd_at_most']} USD"
    lines.append(f"all steps:  {'unknown' if tokens is None else tokens} tokens for one request each")
    lines.append(f"cost:       {cost} for one request each, without the results of earlier steps")
    return lines


def _render_run(plan: Plan) -> list[str]:
    predicted = _section(plan, "predicted")
    candidates = [f"{each['skill_name']} ({each['score']})" for each in _rows(plan, "candidates")]
    files = [f"{each['path']} ({each['tokens']} tokens)" for each in _rows(plan, "disclosed")]
    price = predicted.get("request_cost_usd")
    cost = "unknown" if price is None else f"{price} USD, at most {predicted['request_cost_usd_at_most']} USD"
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
    left = [
        str(name) for name in cast("list[JsonValue]", plan["not_loaded"])
    ]  # as `engine.model.dry_run_reply` writes it
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
    """How a run is shown."""

    output: OutputFormat = "text"
    quiet: bool = False
    verbosity: int = 0
    """0: steps and warnings, 1: details too, `EVENTS`: a line per event instead."""
    timeout_seconds: float | None = None
    shown: Shown | None = None
    """What paints it; nothing where it is quiet."""
    is_ci: bool = False
    """For a machine: grouped lines without colour, a summary and test results in the folder of the run."""


def drive_run(host: Host, work: Work, view: View) -> int:
    """Do the work until it ends or waits; the exit code says which."""
    stoppers = _Stoppers(host.settings.runtime.signal_grace_seconds)
    shown = _build_shown(host, view)
    status = anyio.run(_drive, host, work, replace(view, shown=shown), stoppers)
    exit_code = status.exit_code(signal=stoppers.current.signal)
    if host.settings.notify.bell:
        ring()
    redactor = build_output_redactor(list_host_secrets(host))
    write_outcome(host, status, replace(view, shown=shown), exit_code=exit_code, redactor=redactor)
    if isinstance(shown, CiLog):
        folder = get_run_folder(host, status.run_id)
        advice = describe_next(status, folder, is_told=True)
        write_ci_files(shown.view, folder, result=status.state.result, advice=advice, redactor=redactor)
    return exit_code


def _build_shown(host: Host, view: View) -> Shown | None:
    if view.is_ci:
        return CiLog(io.StringIO() if view.quiet else sys.stderr, get_marks(os.environ))
    if view.quiet:
        return None
    if view.verbosity >= EVENTS:
        return EventLines(sys.stderr, build_host_redactor(host), level=host.settings.logging.level)
    return build_live(build_host_redactor(host), verbosity=view.verbosity, is_text=view.output == "text")


class _Stoppers:
    """The stopper of the moment. A limit that is raised starts a drive with a stopper of its own."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self.current = self._build()

    def _build(self) -> Stopper:
        return Stopper(self._grace_seconds, waits_for_model=False)

    async def ask_for_limit(self, failed: RunState, *, prompter: Prompter) -> LimitRaise | None:
        """Ask the user at the terminal whether the run continues with a higher limit."""
        self.current = self._build()
        raised: RaisedLimits | None = None
        with self.current.interruptible():
            raised = await ask_for_more(failed, prompter)
        return LimitRaise(limits=raised, by=get_user(), stopper=self.current) if raised is not None else None


async def _drive(host: Host, work: Work, view: View, stoppers: _Stoppers) -> RunStatus:
    shown = view.shown
    sinks: list[Sink] = [] if shown is None else [shown]
    if view.output == "stream-json":
        sinks.append(JsonLines(sys.stdout))
    asker = find_asker()
    options = DriveOptions(
        sinks=sinks,
        observe=None if shown is None else shown.observe,
        stopper=stoppers.current,
        timeout_seconds=view.timeout_seconds,
        report=warn_line,
        ask=asker,
        ask_about_code=partial(ask_about_code, prompter=asker) if asker is not None else None,
        ask_for_limit=partial(stoppers.ask_for_limit, prompter=asker) if asker is not None else None,
    )
    try:
        with unwrapped(), using_plugins(host, report=warn_line) as extended, ticking(shown):
            async with passing_signals(lambda: stoppers.current), open_runtime(extended) as runtime:
                return await get_status(runtime.store, await work(runtime, options))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LogError(
            f"Cannot write a file of the run: {error.strerror or error} ({error.filename or 'no name'})",
            hint="Fix it, then run `agent resume latest`",
        ) from error
    raise AssertionError("the block above returns or raises")


def build_reader(host: Host, *, verbosity: int, as_json: bool) -> Sink:
    """Where a run that is only looked at is shown: on stdout, as its view, as event lines, or as JSON."""
    if as_json:
        return JsonLines(sys.stdout)
    if verbosity >= EVENTS:
        return ConsoleSink(sys.stdout, level="debug")
    return ShownRun(LiveRun(build_painter(sys.stdout), build_host_redactor(host), verbosity=verbosity))


def write_outcome(host: Host, status: RunStatus, view: View, *, exit_code: int, redactor: Redactor) -> None:
    """Write the result to stdout, and to stderr where the run is and what can be done with it."""
    state, folder = status.state, get_run_folder(host, status.run_id)
    outcome = build_outcome(status, folder=folder, exit_code=exit_code)
    token = {"resume_token": issue_token(host, state, waiting=status.waiting)}
    match view.output:
        case "json":
            write_json(outcome, redactor=redactor, kept=token)
        case "stream-json":
            write_json_line({"type": "result", **outcome}, redactor=redactor, kept=token)
        case "text":
            _write_result(state, view.shown, redactor)
    sys.stdout.flush()
    if isinstance(view.shown, LiveRun):
        view.shown.show_closing()
    if isinstance(view.shown, LiveRun | CiLog):
        view.shown.close()
    if state.failure is not None:
        for line in (f"error: {status.failure_text}", *describe_cause(status.cause)):
            warn_line(line)
    # A run that waits says for what, even to a user who wants to see no events.
    is_told = isinstance(view.shown, LiveRun)
    for line in describe_waiting(status) if view.quiet else describe_next(status, folder, is_told=is_told):
        warn_line(line)


def _is_held_to_schema(state: RunState) -> bool:
    order = state.started.order if state.started else None
    return order is not None and order.output_schema is not None


def _write_result(state: RunState, shown: Shown | None, redactor: Redactor) -> None:
    """Once: what a person read while it arrived is not written again."""
    plan = parse_plan(state)
    if plan is not None:
        write_text(render_plan(plan), redactor=redactor)
    elif not state.result:
        return
    elif _is_held_to_schema(state):
        # Stdout is the JSON that was asked for, or nothing.
        if state.failure is not None:
            warn_line(printable(state.result, redactor=redactor))
        else:
            write_text(state.result, redactor=redactor)
    elif isinstance(shown, CiLog):
        write_text(state.result, redactor=redactor)
    elif isinstance(shown, LiveRun) and shown.shows_text:
        shown.show_answer(state.result)
    else:
        write_answer(printable(state.result, redactor=redactor))


def describe_next(status: RunStatus, folder: Path, *, is_told: bool = False) -> Sequence[str]:
    """List where the run is, what it waits for, and the commands that continue it. `is_told`: the closing line did."""
    lines = [] if is_told else [f"run:     {status.run_id} is {status.status}, in {_short(folder)}"]
    lines += [f"step:    {step.file}  {step.state}" for step in list_task_steps(status.state)]
    lines += describe_waiting(status)
    lines += suggest(status.failed or status.state, run_id=status.run_id)
    lines += [f"file:    {_short(file)}" for file in sorted((folder / "artifacts").glob("*"))[:MAX_FILES_NAMED]]
    return lines if is_told else [*lines, f"next:    agent replay {status.run_id} --event-stream"]


def describe_cause(cause: str) -> list[str]:
    """Nothing where the sentence that goes with it says it all."""
    return [f"why:     {line}" for line in last_lines(cause)] if "\n" in cause.strip() else []


def describe_waiting(status: RunStatus) -> list[str]:
    """List what the run waits for and the commands that answer it."""
    if not status.pause:
        return []
    child = [f"waiting: for run {status.waits_for}"] if status.waits_for != status.run_id else []
    first, *rest = _describe_pause(status)
    return [*child, first, *describe_cause(status.cause), *rest]


def _describe_pause(status: RunStatus) -> list[str]:
    resume, waits = f"agent resume {status.run_id}", f"waiting: {status.pause_reason}"
    match status.pause:
        case "approval":
            asked = [f"next:    agent approve {approval}" for approval in status.approval_ids]
            return [waits, *asked, f"next:    {resume}"]
        case "input":
            names = status.question.required_names if status.question is not None else (DEFAULT_FIELD,)
            return [waits, f"next:    {resume} {' '.join(f'--input {name}=…' for name in names)}"]
        case "in_doubt":
            return [waits, f"next:    {resume} --answer done|retry|skip|abort"]
        case "changed_code":
            return [waits, f"next:    {resume} {ACCEPT}"]
        case "limit":
            return [waits, f"next:    {render_command(status.waiting, status.run_id)}"]
        case "step_failed":
            return [f"failed:  {status.pause_reason}", f"next:    {resume} [--answer skip|abort]"]
        case _:
            return [waits, f"next:    {resume}"]


def _short(path: Path) -> str:
    cwd = Path.cwd()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
