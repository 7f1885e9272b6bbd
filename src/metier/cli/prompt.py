"""`agent prompt`: every layer of a prompt, where it is from and what it costs; and where two turns begin to differ."""

from typing import Annotated

import anyio
import typer
from msgspec import to_builtins
from pydantic import JsonValue

from metier.cli.shared.options import AsJson, Config
from metier.cli.shared.output import printable, problem_as_json, warn_line, write_json, write_line
from metier.cli.shared.place import open_place
from metier.context.provenance import Difference
from metier.errors import UsageError
from metier.runtime.child_runs import commission_step
from metier.runtime.history.prompts import ShownPrompt, compare, preview, show_turn
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.agents import choose_built_in
from metier.runtime.workspace.plugins import using_plugins

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Show what a model is told: every layer, its source, its hash and its cost.",
)


@app.callback()
def prompt() -> None:
    """Show what a model is told."""


@app.command()
def show(
    text: Annotated[str, typer.Argument(help="A task, as `agent run` would get it.")] = "",
    *,
    agent: Annotated[
        str, typer.Option("--agent", help="As this agent would be told; with --task, where the step names none.")
    ] = "",
    task: Annotated[str, typer.Option("--task", help="The ID of a task of the workspace.")] = "",
    step: Annotated[
        str, typer.Option("--step", help="With --task: the file of the step; the first one if left out.")
    ] = "",
    run: Annotated[str, typer.Option("--run", help="What this run was told: its id, its beginning, or `latest`.")] = "",
    turn: Annotated[
        int | None, typer.Option("--turn", min=1, help="In which of its turns; the last one if left out.")
    ] = None,
    against: Annotated[
        int | None, typer.Option("--against", min=1, help="Another turn: show the first byte that differs.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Leave the texts out.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show every layer of a prompt with its source, hash and cost: the first one of a run to be, or that of a turn.

    A turn of a run is made anew from its journal, and checked against the hash that was recorded when it was sent.
    """
    _check(text=text, agent=agent, task=task, run=run, turn=turn or against)
    if step and not task:
        raise UsageError("--step needs the task that it is a step of", hint="Add --task ID")
    place, agent = choose_built_in(open_place(config), agent)
    if run:
        shown, other = anyio.run(_show_run, place, run, turn, against)
    else:
        shown, other = anyio.run(_preview, place, RunRequest(task=text, agent=agent), task, step), None
    if as_json:
        write_json(_as_json(shown, other))
    else:
        _write(shown, brief=brief or other is not None)
        if other is not None:
            _write_difference(shown, other)


def _check(*, text: str, agent: str, task: str, run: str, turn: int | None) -> None:
    if run and (text or agent or task):
        raise UsageError("--run stands without a task and an agent", hint="A run has its own")
    if not run and turn is not None:
        raise UsageError("--turn and --against need a run", hint="Add --run latest")
    if text and task:
        raise UsageError("Give a task as text or by its ID, not both")


async def _show_run(
    place: Host, name: str, turn: int | None, against: int | None
) -> tuple[ShownPrompt, ShownPrompt | None]:
    async with open_runtime(place) as runtime:
        run_id = (await runtime.find(name)).run_id
        shown = await show_turn(runtime, run_id, turn=turn)
        return shown, await show_turn(runtime, run_id, turn=against) if against is not None else None


async def _preview(place: Host, request: RunRequest, task: str, step: str) -> ShownPrompt:
    with using_plugins(place, report=warn_line) as extended:
        async with open_runtime(extended) as runtime:
            return await _preview_task(runtime, request, task, step) if task else await preview(runtime, request)


async def _preview_task(runtime: Runtime, request: RunRequest, task: str, step: str) -> ShownPrompt:
    commission = commission_step(runtime.place, task, file=step, agent=request.agent)
    return await preview(runtime, RunRequest(task=commission.order.task, mode="dry_run", commission=commission))


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
        "layers": [to_builtins(layer) for layer in shown.layers],
        "problems": [problem_as_json(problem) for problem in shown.problems],
    }
    if other is not None:
        difference = compare(shown, other)
        found["against"] = {
            "turn": other.turn,
            "is_exact": other.is_exact,
            "difference": _difference_as_json(difference),
        }
    return found


def _difference_as_json(difference: Difference | None) -> JsonValue:
    return None if difference is None else to_builtins(difference)


def _write(shown: ShownPrompt, *, brief: bool) -> None:
    write_line(f"agent:   {shown.agent or 'built in'}, model {shown.model}, turn {shown.turn}")
    write_line(f"tokens:  {shown.tokens} of {shown.limit}")
    write_line(f"request: {shown.request_hash}, stable part {shown.prefix_hash}")
    if shown.recorded_hash:
        word = "the same as was sent" if shown.is_exact else f"NOT what was sent, which was {shown.recorded_hash}"
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
    place = difference.first or difference.second
    write_line(f"Turn {shown.turn} and turn {other.turn} differ from byte {difference.offset} on, in {place!r}")
    write_line(f"  before   …{printable(difference.before)!r}")
    write_line(f"  turn {shown.turn:<3} {difference.first or 'has ended'}: {difference.first_text!r}")
    write_line(f"  turn {other.turn:<3} {difference.second or 'has ended'}: {difference.second_text!r}")
