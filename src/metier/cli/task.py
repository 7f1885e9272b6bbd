"""`agent task`: list, show, check and run task definitions."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.list_tasks import app as listing
from metier.cli.list_tasks import find_tasks, read_on_server
from metier.cli.run.driver import View, drive_run, run_in_background
from metier.cli.run.live import EVENTS
from metier.cli.shared.command_options import (
    AsJson,
    Ci,
    Config,
    Detach,
    Events,
    Output,
    Quiet,
    RunCommand,
    Verbose,
    build_group,
    check_timeout,
    get_server_url,
    split_input,
)
from metier.cli.shared.open_host import open_host, open_run_host
from metier.cli.shared.output import problem_as_json, warn_line, write_json, write_line
from metier.definitions.names import fold_id
from metier.definitions.problems import Problem, has_errors
from metier.errors import UsageError
from metier.providers.model_names import qualify_model_name
from metier.runtime.documents import task_as_json
from metier.runtime.requests import join_trace
from metier.runtime.run_access import TaskRequest
from metier.runtime.validation import get_all_problems
from metier.runtime.workspace.agents import choose_built_in
from metier.runtime.workspace.tasks import get_task
from metier.telemetry.amounts import format_count

app = build_group("List, show and run task definitions.")

app.registered_commands += listing.registered_commands

MAX_INPUT_BYTES = 1_000_000
TaskId = Annotated[str, typer.Argument(help="Task ID: its folder in `tasks/`.")]


@app.command()
def show(task: TaskId, *, as_json: AsJson = False, config: Config = None) -> None:
    """Show a task's inputs and steps."""
    definition = _read_task(task, config)
    if as_json:
        write_json(definition)
        return
    write_line(f"task:    {definition['id']}  {definition['name']}")
    if definition["description"]:
        write_line(f"about:   {definition['description']}")
    for item in definition["inputs"]:
        default = "required" if item["default"] is None else f"default {item['default']!r}"
        write_line(f"input:   {item['name']}  {default}  {item['description']}".rstrip())
    for number, step in enumerate(definition["steps"], start=1):
        write_line(f"step:    {number}. {step['file']}  {step['name']}")
        for line in _describe_step(step):
            write_line(f"         {line}")


def _read_task(task: str, config: Path | None) -> dict[str, Any]:
    if url := get_server_url():
        return read_on_server(url, f"/tasks/{task}")
    return task_as_json(get_task(open_host(config), task))


@app.command(cls=RunCommand)
def run(
    task: TaskId,
    *,
    inputs: Annotated[list[str] | None, typer.Option("--input", help="Input as name=value (repeatable).")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input-file", help="JSON file with inputs; --input overrides it.")
    ] = None,
    agent: Annotated[str, typer.Option("--agent", help="Agent for steps that name none.")] = "",
    profile: Annotated[
        Literal["guarded", "strict"] | None,
        typer.Option("--profile", help="Default when no rule matches. Default: guarded."),
    ] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Model provider; `offline` needs no key.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model, or provider/model.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run/--no-dry-run", help="Show the plan; call no model, start no process."),
    ] = False,
    max_turns: Annotated[int | None, typer.Option("--max-turns", help="Maximum number of turns per step.")] = None,
    max_cost_usd: Annotated[
        float | None, typer.Option("--max-cost-usd", help="Maximum total cost in US dollars.")
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Timeout in seconds.")] = None,
    detach: Detach = False,
    as_json: AsJson = False,
    output_format: Output = "text",
    quiet: Quiet = False,
    ci: Ci = False,
    verbose: Verbose = 0,
    events: Events = False,
    config: Config = None,
) -> int:
    """Run a task step by step.

    Exit codes are those of `agent run`.
    """
    check_timeout(timeout, detach=detach)
    flags: dict[str, Any] = {
        "runtime.profile": profile,
        "model.provider": provider,
        "runtime.max_turns": max_turns,
        "runtime.max_cost_usd": max_cost_usd,
    }
    given_flags = {key: str(value) for key, value in flags.items() if value is not None}
    given = {**(_read_inputs(input_file) if input_file else {}), **parse_inputs(inputs or [])}
    output = "json" if as_json and output_format == "text" else output_format
    verbosity = EVENTS if events else verbose
    view = View(output=output, quiet=quiet, verbosity=verbosity, timeout_seconds=timeout, is_ci=ci)
    named = qualify_model_name(model, provider=provider)
    mode = "dry_run" if dry_run else "live"
    request = TaskRequest(task_id=task, inputs=given, agent=agent, model=named, mode=mode, settings=given_flags)
    return _run(request, view, detaches=detach, config=config)


def _run(request: TaskRequest, view: View, *, detaches: bool, config: Path | None) -> int:
    host = None if get_server_url() else open_run_host(config, request.settings, is_new_run=not request.model)
    if host is not None:
        host, agent = choose_built_in(host, request.agent)
        request = replace(request, agent=agent)
    if host is None or detaches:
        return run_in_background(
            lambda runs: runs.submit_task(request), view, detaches=detaches, host=host, config=config
        )
    run = join_trace(request.build(host), host)
    return drive_run(host, lambda runtime, options: runtime.start(run, options), view)


@app.command(hidden=True)
def validate(
    task: Annotated[str, typer.Argument(help="Task ID. Default: all tasks.")] = "",
    *,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Check task definitions.

    Exit code 1: a task has an error.

    """
    host = open_host(config)
    found = [each for each in find_tasks(host) if not task or fold_id(each.id) == fold_id(task)]
    if task and not found:
        get_task(host, task)
    wanted = {each.id for each in found}
    problems = {task_id: of_task for task_id, of_task in get_all_problems(host, "task").items() if task_id in wanted}
    if as_json:
        write_json(
            [
                {"id": task_id, "problems": [{"file": p.file, **problem_as_json(p)} for p in of_task]}
                for task_id, of_task in problems.items()
            ]
        )
    else:
        _write_problems(problems)
    return 1 if any(has_errors(of_task) for of_task in problems.values()) else 0


def _write_problems(problems: Mapping[str, tuple[Problem, ...]]) -> None:
    for of_task in problems.values():
        for problem in of_task:
            write_line(problem.render())
    warn_line(f"Checked {format_count(len(problems), 'task')}")


def _describe_step(step: dict[str, Any]) -> list[str]:
    lines = [f"agent {step['agent']}"] if step["agent"] else []
    for name in ("tools", "skills", "tasks"):
        lines += [f"{name}: {', '.join(step[name]) or 'none'}"] if step[name] is not None else []
    lines += ["the result is JSON that matches output_schema"] if step["output_schema"] is not None else []
    return [*lines, *(f"done: {criterion}" for criterion in step["acceptance"])]


def parse_inputs(texts: Sequence[str]) -> dict[str, str]:
    """Parse `name=value` texts. Values stay text, so `1.10` is not 1.1. Raises `UsageError`."""
    return dict(map(split_input, texts))


def _read_inputs(path: Path) -> dict[str, JsonValue]:
    """Read inputs from a JSON file. Raises `UsageError` if it is not an object."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_INPUT_BYTES + 1)
        value: JsonValue = json.loads(data)
    except OSError as error:
        raise UsageError(
            f"The input file {str(path)!r} cannot be read: {error.strerror}", hint="Check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"The input file {str(path)!r} is not JSON: {error}", hint='Write {"name": "value"}'
        ) from error
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"The input file {str(path)!r} is longer than {MAX_INPUT_BYTES} bytes")
    if not isinstance(value, dict):
        raise UsageError(f"The input file {str(path)!r} must hold one JSON object", hint='Write {"name": "value"}')
    return cast("dict[str, JsonValue]", value)
