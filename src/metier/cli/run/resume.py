"""`agent resume`: resume a run that was paused, stopped or answered, or whose process died."""

import json
from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.run.driver import View, drive_run, run_in_background
from metier.cli.run.live import EVENTS
from metier.cli.shared.command_options import (
    Config,
    Events,
    IncludePartial,
    Output,
    Quiet,
    RunName,
    Verbose,
    check_timeout,
    choose_output,
    get_server_url,
    split_input,
)
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import warn_line
from metier.engine.state.run_state import RunState
from metier.ids import get_user
from metier.runtime.answers import ACCEPT, Answer, RaisedLimits, check_answer
from metier.runtime.driver import DriveOptions
from metier.runtime.history.run_views import read_run_view
from metier.runtime.host import Host
from metier.runtime.records.signatures import check_run_token
from metier.runtime.run_access import Runs
from metier.runtime.runs import Runtime
from metier.views.live import LiveRun
from metier.views.user_question import QuestionField

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def resume(
    run: RunName,
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Answer as name=value; JSON values keep their type (repeatable)."),
    ] = None,
    answer: Annotated[
        Literal["done", "retry", "skip", "abort"] | None,
        typer.Option("--answer", help="Resolve an interrupted step: done, retry, skip or abort."),
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option("--max-turns", min=1, help="New maximum number of turns in total.")
    ] = None,
    max_cost_usd: Annotated[
        float | None, typer.Option("--max-cost-usd", min=0, help="New maximum total cost in US dollars.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Model to continue with.")] = "",
    token: Annotated[
        str,
        typer.Option("--token", help="Resume only if the run's resume_token still matches."),
    ] = "",
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Resume even if the run store lost entries."),
    ] = False,
    accept_changed_skills: Annotated[
        bool,
        typer.Option(ACCEPT, help="Use the current skill files even if they changed."),
    ] = False,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Timeout in seconds.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Save the answer and continue in the background.")] = False,
    output_format: Output = "text",
    include_partial: IncludePartial = False,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --output-format json.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    events: Events = False,
    config: Config = None,
) -> int:
    """Resume a paused or interrupted run.

    The run keeps its model and rules. If the provider ended it, it is retried with the current model settings or
    with --model. Exit code 10: another process is running it.
    """
    # Only to reject malformed texts early; the types of the fields are known when the run is open.
    parse_inputs(inputs or ())
    check_timeout(timeout)
    output = choose_output(output_format, as_json=as_json, include_partial=include_partial)
    raised = RaisedLimits(max_turns=max_turns, max_cost_usd=max_cost_usd, timeout_seconds=timeout)
    wanted = _Resumption(run=run, inputs=inputs or [], doubt=answer, raised=raised, accepts_loss=accept_loss)
    wanted = replace(wanted, accepts_changed_skills=accept_changed_skills, token=token, model=model)
    view = View(output=output, quiet=quiet, verbosity=EVENTS if events else verbose, timeout_seconds=timeout)
    view = replace(view, with_partials=include_partial)
    if get_server_url():
        return run_in_background(wanted.record, view, detaches=detach)
    host = open_host(config)
    if detach:
        return run_in_background(wanted.record, view, detaches=True, host=host, config=config)
    return drive_run(host, wanted.resume, view)


def resume_run(host: Host, run_id: str, view: View) -> int:
    """Resume a run whose answer is stored already, and return the exit code."""
    return drive_run(host, _Resumption(run=run_id, inputs=[], doubt=None, raised=RaisedLimits()).resume, view)


class _Resumption(Struct, frozen=True, kw_only=True):
    """The run to resume, and the user's input for it."""

    run: str
    inputs: list[str]
    doubt: Literal["done", "retry", "skip", "abort"] | None
    raised: RaisedLimits
    accepts_loss: bool = False
    accepts_changed_skills: bool = False
    token: str = ""
    model: str = ""

    async def find(self, runtime: Runtime) -> tuple[str, Answer]:
        run_id = (await runtime.find(self.run)).run_id
        status = await runtime.get_status(run_id)
        if self.token:
            check_run_token(runtime.host, self.token, status.state, waiting=status.waiting)
        answer = self._build_answer(status.question.fields if status.question is not None else ())
        if not status.row.driver:
            # If another process drives the run, `resume` reports that conflict instead of an invalid answer.
            check_answer(status, answer)
        return run_id, answer

    def _build_answer(self, fields: Sequence[QuestionField]) -> Answer:
        return Answer(
            values=parse_inputs(self.inputs, fields) if self.inputs else None,
            doubt=self.doubt,
            by=get_user(),
            raised=self.raised,
            model=self.model,
            reopens=True,
            accepts_changed_skills=self.accepts_changed_skills,
        )

    async def resume(self, runtime: Runtime, options: DriveOptions) -> RunState:
        run_id, answer = await self.find(runtime)
        for sink in options.sinks:
            if isinstance(sink, LiveRun):
                sink.follow(await read_run_view(runtime, run_id))
                if sink.view.status == "completed":
                    warn_line(f"Run {run_id} is already completed; there is nothing to resume")
        return await runtime.resume(run_id, answer, replace(options, accepts_loss=self.accepts_loss))

    async def record(self, runs: Runs) -> str:
        """Record the answer, so that a worker or the server continues the run."""
        row = await runs.find(self.run)
        answer = self._build_answer(await runs.get_question_fields(row.run_id) if self.inputs else ())
        await runs.answer(row.run_id, answer, token=self.token)
        return row.run_id


def parse_inputs(texts: Sequence[str], fields: Sequence[QuestionField] = ()) -> dict[str, JsonValue]:
    """Parse `name=value` texts by the types of the fields that ask for them. Raises `UsageError`."""
    types = {field.name: field.types for field in fields}
    values: dict[str, JsonValue] = {}
    for name, value in map(split_input, texts):
        values[name] = _parse_value(value, types.get(name, ()))
    return values


def _parse_value(text: str, wanted: tuple[str, ...] = ()) -> JsonValue:
    """Parse JSON, except if the field is a string: the version `1.10` stays text."""
    try:
        value: JsonValue = json.loads(text)
    # Deeply nested brackets exceed the recursion limit of the JSON parser.
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and value != value:  # NaN is not JSON
        return text
    # A field for text or a list gets the list that was typed, but never a number or a boolean.
    is_plain = not isinstance(value, list | dict)
    return text if "string" in wanted and (is_plain or len(wanted) == 1) else value
