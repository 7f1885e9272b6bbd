"""`agent prompt`: show the layers of a prompt with source and size, and the first difference between two turns."""

from typing import Annotated

import anyio
import typer
from msgspec import to_builtins

from metier.cli.shared.command_options import AsJson, Config, build_group
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import printable, problem_as_json, warn_line, write_json, write_line
from metier.errors import UsageError
from metier.runtime.child_runs import request_step
from metier.runtime.history.prompts import ShownPrompt, compare, preview, show_turn
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.runtime.workspace.agents import choose_built_in
from metier.runtime.workspace.plugins import using_plugins

app = build_group("Show the prompt sent to the model.")


@app.command()
def show(
    text: Annotated[str, typer.Argument(help="Task, as for `agent run`.")] = "",
    *,
    agent: Annotated[str, typer.Option("--agent", help="Agent ID. With --task: for steps that name none.")] = "",
    task: Annotated[str, typer.Option("--task", help="Task ID.")] = "",
    step: Annotated[str, typer.Option("--step", help="With --task: step file. Default: the first step.")] = "",
    run: Annotated[str, typer.Option("--run", help="Show a run's prompt: its ID, a prefix, or `latest`.")] = "",
    turn: Annotated[int | None, typer.Option("--turn", min=1, help="Turn of the run. Default: the last.")] = None,
    against: Annotated[
        int | None, typer.Option("--against", min=1, help="Another turn; show the first difference.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Omit the texts.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show the prompt's layers with source, hash and tokens.

    A turn's prompt is rebuilt from the journal and checked against its recorded hash.
    """
    _check(text=text, agent=agent, task=task, run=run, turn=turn or against)
    if step and not task:
        raise UsageError("--step needs --task", hint="Add --task ID")
    host, agent = choose_built_in(open_host(config), agent)
    if run:
        shown, other = anyio.run(_show_run, host, run, turn, against)
    else:
        shown, other = anyio.run(_preview, host, RunRequest(task=text, agent=agent), task, step), None
    if as_json:
        write_json(_as_json(shown, other))
    else:
        _write(shown, brief=brief or other is not None)
        if other is not None:
            _write_difference(shown, other)


def _check(*, text: str, agent: str, task: str, run: str, turn: int | None) -> None:
    if run and (text or agent or task):
        raise UsageError(
            "--run cannot be combined with a task or --agent", hint="Remove the task and --agent: a run has its own"
        )
    if not run and turn is not None:
        raise UsageError("--turn and --against need --run", hint="Add --run latest")
    if text and task:
        raise UsageError("Pass the task as text or with --task, not both", hint="Use one of them")


async def _show_run(
    host: Host, name: str, turn: int | None, against: int | None
) -> tuple[ShownPrompt, ShownPrompt | None]:
    async with open_runtime(host) as runtime:
        run_id = (await runtime.find(name)).run_id
        shown = await show_turn(runtime, run_id, turn=turn)
        return shown, await show_turn(runtime, run_id, turn=against) if against is not None else None


async def _preview(host: Host, request: RunRequest, task: str, step: str) -> ShownPrompt:
    with using_plugins(host, report=warn_line) as extended:
        async with open_runtime(extended) as runtime:
            if task:
                request = request_step(runtime.host, task, file=step, agent=request.agent)
            return await preview(runtime, request)


def _as_json(shown: ShownPrompt, other: ShownPrompt | None) -> dict[str, object]:
    found: dict[str, object] = {
        "agent": shown.agent,
        "model": shown.model,
        "turn": shown.turn,
        "tokens": shown.tokens,
        "limit": shown.limit,
        "prefix_hash": shown.prefix_hash,
        "request_hash": shown.request_hash,
        "recorded_hash": shown.recorded_hash or None,
        "is_exact": shown.is_exact if shown.recorded_hash else None,
        "trimmed": list(shown.trimmed),
        "layers": to_builtins(shown.layers),
        "problems": [problem_as_json(problem) for problem in shown.problems],
    }
    if other is not None:
        difference = compare(shown, other)
        found["against"] = {
            "turn": other.turn,
            "is_exact": other.is_exact,
            "difference": None if difference is None else to_builtins(difference),
        }
    return found


def _write(shown: ShownPrompt, *, brief: bool) -> None:
    write_line(f"agent:   {shown.agent or 'built in'}, model {shown.model}, turn {shown.turn}")
    write_line(f"tokens:  {shown.tokens} of {shown.limit}")
    write_line(f"request: {shown.request_hash}, stable part {shown.prefix_hash}")
    if shown.recorded_hash:
        word = (
            "matches the request that was sent"
            if shown.is_exact
            else f"does NOT match the request that was sent: {shown.recorded_hash}"
        )
        write_line(f"journal: {word}")
    for label in shown.trimmed:
        write_line(f"dropped: {label}")
    for layer in shown.layers:
        write_line(
            f"{layer.name:<12} {layer.tokens:>6} tokens  {layer.bytes:>7} bytes  {layer.sha256[:12]}  {layer.source}"
        )
    for problem in shown.problems:
        warn_line(problem.render())
    for layer in () if brief else shown.layers:
        write_line(f"\n--- {layer.name}: {layer.source}\n{printable(layer.text)}")


def _write_difference(shown: ShownPrompt, other: ShownPrompt) -> None:
    difference = compare(shown, other)
    if difference is None:
        write_line(f"Turn {shown.turn} and turn {other.turn} are the same")
        return
    layer = difference.first or difference.second
    write_line(f"Turn {shown.turn} and turn {other.turn} differ from byte {difference.offset} on, in {layer!r}")
    write_line(f"  before   …{printable(difference.before)!r}")
    write_line(f"  turn {shown.turn:<3} {difference.first or 'has ended'}: {difference.first_text!r}")
    write_line(f"  turn {other.turn:<3} {difference.second or 'has ended'}: {difference.second_text!r}")
