"""`agent eval backtest` and `agent eval capture`: try a change on past runs, make a case of one."""

import json
from typing import Annotated

import anyio
import typer
from msgspec import to_builtins

from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import AsJson, Config, RunName
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.evals.backtest import KINDS, BacktestedRun, backtest_run, list_past_runs, parse_changes
from metier.evals.capture import Captured, capture_run
from metier.evals.recorded_evals import replay_target
from metier.evals.report_formats import render_row
from metier.runtime.runs import open_runtime

SAME, DIFFERENT = 0, 1


def attach(app: typer.Typer) -> None:
    """Add the commands to the group `agent eval`."""
    app.command("backtest")(backtest)
    app.command("capture")(capture)


def backtest(
    *,
    change: Annotated[
        list[str], typer.Option("--change", help=f"Change as KIND=VALUE (repeatable): {', '.join(KINDS)}.")
    ],
    runs: Annotated[str, typer.Option("--runs", help="Number of newest runs, agent=ID, status=STATUS, or IDs.")] = "20",
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Replay past runs with a change and show differences.

    Sends and runs nothing. Exit code 1: a run would differ.
    """
    host = open_host(config)
    proposed = parse_changes(change, workspace=host.workspace)

    async def work() -> list[BacktestedRun]:
        async with open_runtime(host) as runtime:
            return [await backtest_run(runtime, row, proposed) for row in await list_past_runs(runtime, runs)]

    found = anyio.run(work)
    if as_json:
        write_json([json.loads(json.dumps({**to_builtins(run), "differs": run.differs}, default=str)) for run in found])
    else:
        for run in found:
            _write(run)
        differing = sum(run.differs for run in found)
        warn_line(f"{differing} of {len(found)} runs would differ")
    return DIFFERENT if any(run.differs or run.problem for run in found) else SAME


def _write(run: BacktestedRun) -> None:
    word = "cannot be replayed" if run.problem else "differs" if run.differs else "same"
    write_line(f"{run.run_id}  {word}: {run.exact} of {run.entries} entries match exactly, {run.carried} carried")
    if run.problem:
        write_line(f"    {run.problem}")
    if run.routing is not None:
        write_line(
            f"    routing: {', '.join(run.routing.before) or 'none'} -> {', '.join(run.routing.after) or 'none'}"
        )
    if run.turns_with_other_prompt:
        turns = ", ".join(str(turn) for turn in run.turns_with_other_prompt)
        before, after = run.prompt_tokens
        write_line(f"    prompt: differs in turn {turns}; about {after - before:+d} tokens ({before} -> {after})")
    for change in run.verdicts:
        write_line(f"    verdict: {change.tool} {change.was} -> {change.now} ({change.reason})")
    before_usd, after_usd = run.cost_usd
    if before_usd is not None and after_usd is not None:
        write_line(f"    cost: {before_usd:.4f} -> {after_usd:.4f} USD for the same tokens")
    if run.stops:
        write_line(f"    the recording ends at entry {run.carried}: {run.stops}")


def capture(
    run: RunName,
    *,
    id_: Annotated[str, typer.Option("--id", help="Case ID. Default: the run's ID.")] = "",
    target: Annotated[str, typer.Option("--for", help="Target as kind:name. Default: what the run used.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Create an eval case from a past run."""
    host = open_host(config)

    async def work() -> Captured:
        async with open_runtime(host) as runtime:
            row = await runtime.find(run)
            return await capture_run(runtime, row.run_id, case_id=id_ or row.run_id, target_name=target)

    captured = anyio.run(work)
    rows = anyio.run(replay_target, captured.target, (captured.sourced,))
    shown = captured.file.relative_to(host.workspace).as_posix()
    if as_json:
        files, unsure = list(captured.files), list(captured.unsure)
        status = rows[0].status
        write_json({"file": shown, "target": captured.target.name, "files": files, "as_now": unsure, "status": status})
        return
    write_line(shown)
    for path in captured.unsure:
        warn_line(f"note: {path} has its current content: the run read it but did not change it")
    for line in render_row(rows[0]):
        warn_line(line)
