"""`agent --server URL …`: run, runs, approvals, chat and task against a server, in the words of the local commands."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from pydantic import JsonValue
from typer.main import get_command

from metier.cli.remote.client import Document, Server, open_server
from metier.cli.run.live import EVENTS, EventLines, JsonLines, Shown, build_live, write_answer
from metier.cli.run.resume import parse_inputs
from metier.cli.run.task_text import read_context, read_task
from metier.cli.shared.options import Quiet, Verbose, choose_output
from metier.cli.shared.output import (
    build_output_redactor,
    printable,
    warn_line,
    write_json,
    write_json_line,
    write_line,
)
from metier.definitions.files.whole_file import replace_file
from metier.telemetry.excerpt import one_line
from metier.telemetry.sinks import Sink
from metier.views.live import LiveRun
from metier.views.user_question import parse_fields

type OutputFormat = str


def show_run(
    server: Server, run_id: str, *, output: OutputFormat = "text", verbosity: int = 0, quiet: bool = False
) -> int:
    """Follow the run until it ends or pauses, and return the exit code of `agent run`."""
    shown = None if quiet else _build_shown(output, verbosity)
    sinks: list[Sink] = [shown] if shown is not None else []
    if output == "stream-json":
        sinks.append(JsonLines(sys.stdout))
    try:
        for record in server.follow(run_id):
            for sink in sinks:
                sink.write(record)
    except KeyboardInterrupt:
        warn_line(
            f"run:     {run_id} continues on the server\nnext:    agent --server {server.url} runs watch {run_id}"
        )
        raise
    found = server.get(f"/runs/{run_id}")
    _write(found, shown, output)
    for line in describe_waiting(server, found):
        warn_line(line)
    return int(found["exit_code"])


def describe_waiting(server: Server, found: Document) -> list[str]:
    """Describe what the run waits for, with the next commands."""
    here = f"agent --server {server.url}"
    lines = [f"error: {found['message']} ({found['reason']})"] if found["exit_code"] not in (0, 3, 4) else []
    lines += [f"waiting: {found['message']}"] if found["exit_code"] in (3, 4) else []
    approvals = cast("list[dict[str, JsonValue]]", found["approvals"])
    lines += [f"next:    {here} approve {each['approval_id']}" for each in approvals]
    if found.get("question"):
        lines.append(f"next:    {here} runs answer {found['run_id']} --input name=value")
    return lines


def _build_shown(output: OutputFormat, verbosity: int) -> Shown:
    redactor = build_output_redactor()
    if verbosity >= EVENTS:
        return EventLines(sys.stderr, redactor)
    return build_live(redactor, verbosity=verbosity, is_text=output == "text")


def _write(found: Document, shown: Shown | None, output: OutputFormat) -> None:
    if output == "json":
        write_json(found)
    elif output == "stream-json":
        write_json_line({"type": "result", **found})
    elif isinstance(shown, LiveRun) and shown.shows_text:
        shown.show_answer(str(found["result"]))
    elif found["result"]:
        write_answer(printable(str(found["result"])))
    if isinstance(shown, LiveRun):
        shown.show_closing()
    if shown is not None:
        shown.close()


app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Run commands on a server.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True, help="Runs of the server.")
approvals = typer.Typer(
    rich_markup_mode=None, add_completion=False, no_args_is_help=True, help="List, show and decide approvals."
)
tasks = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True, help="Tasks of the server.")
app.add_typer(runs, name="runs")
app.add_typer(approvals, name="approvals")
app.add_typer(tasks, name="task")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[
    Literal["text", "json", "stream-json"],
    typer.Option("--output-format", help="Output: text, one JSON object, or JSON events."),
]
Agent = Annotated[str, typer.Option("--agent", help="Agent ID.")]
Model = Annotated[str, typer.Option("--model", help="Model, or provider/model.")]
Provider = Annotated[str, typer.Option("--provider", help="Model provider; `offline` needs no key.")]
Profile = Annotated[str, typer.Option("--profile", help="Default when no rule matches.")]
MaxTurns = Annotated[int | None, typer.Option("--max-turns", help="Maximum number of turns.")]
MaxCost = Annotated[float | None, typer.Option("--max-cost-usd", help="Maximum cost in US dollars.")]
DryRun = Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Show the plan; call no model, start no process.")]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background; print the run ID and exit.")]
Inputs = Annotated[list[str] | None, typer.Option("--input", help="Input as name=value (repeatable).")]
Run = Annotated[str, typer.Argument(help="Run ID, a prefix of it, or `latest`.")]
Approval = Annotated[str, typer.Argument(help="Approval ID, or a prefix of it.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason; the model sees the reason of a denial.")]


def invoke_remote(url: str, args: Sequence[str]) -> int:
    """Run the rest of a command line on the server at this URL."""
    server = open_server(url)
    with server.client:
        result: object = get_command(app).main(
            args=list(args), prog_name="agent --server URL", standalone_mode=False, obj=server
        )
    return result if isinstance(result, int) else 0


@app.command()
def run(
    ctx: typer.Context,
    task: Annotated[str | None, typer.Argument(help="Task; `-` reads it from stdin.")] = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Task, as an option.")] = None,
    *,
    agent: Agent = "",
    model: Model = "",
    provider: Provider = "",
    profile: Profile = "",
    max_turns: MaxTurns = None,
    max_cost_usd: MaxCost = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    output_format: Output = "text",
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> int:
    """Run a task on the server. Exit codes are those of `agent run`."""
    body: Document = {
        "task": read_task(task, prompt=prompt, file=None),
        "agent": agent,
        "model": model,
        "extra_context": read_context(is_task=task == "-" or prompt == "-"),
        "mode": "dry_run" if dry_run else "live",
        **_limits(provider, profile, max_turns, max_cost_usd),
    }
    begun = _server(ctx).post("/runs", body)
    output = choose_output(output_format, as_json=as_json)
    return _follow(ctx, begun, output=output, verbosity=verbose, quiet=quiet, detach=detach)


@tasks.command("run")
def run_task(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(help="Task ID.")],
    *,
    inputs: Inputs = None,
    agent: Agent = "",
    model: Model = "",
    provider: Provider = "",
    max_turns: MaxTurns = None,
    max_cost_usd: MaxCost = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    output_format: Output = "text",
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> int:
    """Run a task definition on the server."""
    schema = _server(ctx).get(f"/tasks/{task}/input-schema")
    body: Document = {
        "inputs": parse_inputs(inputs or (), parse_fields(schema)),
        "agent": agent,
        "model": model,
        "mode": "dry_run" if dry_run else "live",
        **_limits(provider, "", max_turns, max_cost_usd),
    }
    begun = _server(ctx).post(f"/tasks/{task}/runs", body)
    output = choose_output(output_format, as_json=as_json)
    return _follow(ctx, begun, output=output, verbosity=verbose, quiet=quiet, detach=detach)


@tasks.command("list")
def list_tasks(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """List the tasks of the server."""
    _write_list(_server(ctx).get("/tasks")["items"], "id", "description", as_json=as_json)


@tasks.command("show")
def show_task(ctx: typer.Context, task: Annotated[str, typer.Argument(help="Task ID.")]) -> None:
    """Show a task's steps and input schema as JSON."""
    write_json(_server(ctx).get(f"/tasks/{task}"))


@runs.command("list")
def list_runs(
    ctx: typer.Context,
    *,
    status: Annotated[str, typer.Option("--status", help="Only runs of this status.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="Maximum number of runs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    wanted: dict[str, str | int] = {"limit": limit, **({"status": status} if status else {})}
    _write_list(_server(ctx).get("/runs", **wanted)["items"], "run_id", "status", "task", as_json=as_json)


@runs.command("show")
def show(ctx: typer.Context, run: Run, *, as_json: AsJson = False) -> int:
    """Show a run's status."""
    server = _server(ctx)
    found = server.get(f"/runs/{run}")
    if as_json:
        write_json(found)
        return 0
    for name in ("run_id", "status", "task", "agent", "model", "turns", "cost_usd"):
        write_line(f"{name + ':':<9}{found[name] if found[name] is not None else 'unknown'}")
    for line in describe_waiting(server, found):
        write_line(line)
    if found["result"]:
        write_line(f"\n{found['result']}")
    return 0


@runs.command("watch")
def watch(ctx: typer.Context, run: Run, *, output_format: Output = "text", verbose: Verbose = 0) -> int:
    """Follow a run until it ends or pauses."""
    server = _server(ctx)
    run_id = str(server.get(f"/runs/{run}")["run_id"])
    return show_run(server, run_id, output=output_format, verbosity=verbose)


@runs.command("cancel")
def cancel(ctx: typer.Context, run: Run) -> None:
    """Cancel a run."""
    ended = _server(ctx).post(f"/runs/{run}/cancel")
    write_line(f"{ended['run_id']} is {ended['status']}")


@runs.command("answer")
def answer(ctx: typer.Context, run: Run, *, inputs: Inputs = None, quiet: Quiet = False) -> int:
    """Answer a run's question and follow it."""
    server = _server(ctx)
    found = server.get(f"/runs/{run}")
    question = cast("Document", found.get("question") or {})  # an object where it asks something
    fields = parse_fields(cast("JsonValue", question.get("fields")))
    server.post(f"/runs/{found['run_id']}/answer", {"values": parse_inputs(inputs or (), fields)})
    return show_run(server, str(found["run_id"]), quiet=quiet)


@runs.command("export")
def export(
    ctx: typer.Context,
    run: Run,
    *,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file.")] = None,
) -> None:
    """Export a run to a file for `agent runs import`."""
    server = _server(ctx)
    run_id = str(server.get(f"/runs/{run}")["run_id"])
    path = output or Path(f"{run_id}.metier-run")
    replace_file(path, server.download(f"/runs/{run_id}/export"))
    write_line(str(path))


@approvals.command("list")
def list_approvals(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """List pending approvals, oldest first."""
    _write_list(_server(ctx).get("/approvals")["items"], "approval_id", "run_id", "tool", "arguments", as_json=as_json)


@approvals.command("show")
def show_approval(ctx: typer.Context, approval: Approval) -> None:
    """Show an approval's call and changes as JSON."""
    write_json(_server(ctx).get(f"/approvals/{approval}"))


@approvals.command("approve")
def approve(ctx: typer.Context, approval: Approval, *, reason: Reason = "") -> None:
    """Approve a pending call. Exit code 10: the approval was already decided or has expired."""
    # The server wants the hash of the call that the user saw. As for a local run, that is the call of this moment.
    seen = _server(ctx).get(f"/approvals/{approval}")["hash"]
    _decide(ctx, approval, "approve", reason, hash=seen)


@approvals.command("deny")
def deny(ctx: typer.Context, approval: Approval, *, reason: Reason = "") -> None:
    """Deny a pending call."""
    _decide(ctx, approval, "deny", reason)


@app.command()
def chat(
    ctx: typer.Context,
    *,
    context: Annotated[str, typer.Option("--context", help="The conversation: a name of your own.")] = "",
    agent: Agent = "",
    model: Model = "",
    quiet: Quiet = False,
) -> int:
    """Chat with an agent of the server. An empty line exits."""
    server, code = _server(ctx), 0
    made = server.post("/conversations", {"name": context, "agent": agent, "model": model})
    name = str(made["context_id"])
    warn_line(f"chat:    {name}; an empty line exits")
    for line in _read_lines():
        begun = server.post(f"/conversations/{name}/messages", {"text": line})
        code = show_run(server, str(begun["run_id"]), quiet=quiet)
    return code


def _read_lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _server(ctx: typer.Context) -> Server:
    server: Server = ctx.obj
    return server


def _follow(ctx: typer.Context, begun: Document, *, output: str, verbosity: int, quiet: bool, detach: bool) -> int:
    if detach:
        write_json(begun) if output != "text" else write_line(str(begun["run_id"]))
        return 0
    return show_run(_server(ctx), str(begun["run_id"]), output=output, verbosity=verbosity, quiet=quiet)


def _decide(ctx: typer.Context, approval: str, verb: str, reason: str, **more: str) -> None:
    decided = _server(ctx).post(f"/approvals/{approval}/{verb}", {"reason": reason, **more})
    write_line(f"{decided['approval_id']} {decided['status']} by {decided['decided_by']}")


def _limits(provider: str, profile: str, max_turns: int | None, max_cost_usd: float | None) -> Document:
    return {"provider": provider, "profile": profile, "max_turns": max_turns, "max_cost_usd": max_cost_usd}


def _write_list(items: list[dict[str, Any]], *names: str, as_json: bool) -> None:
    if as_json:
        write_json(items)
        return
    for item in items:
        write_line("  ".join(one_line(str(item.get(name, "")), 80) for name in names))
    if not items:
        warn_line("Nothing to list")
