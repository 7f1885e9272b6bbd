"""`agent undo`: undo a run's file changes."""

import sys
from typing import Annotated

import anyio
import typer
from pydantic import JsonValue

from metier.cli.shared.command_options import AsJson, Config
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import printable, warn_line, write_json, write_line
from metier.errors import FilesChanged
from metier.ids import get_user
from metier.runtime.history.undo import CANNOT, PlannedFile, Undone, UndoPlan, plan_undo, undo
from metier.runtime.host import Host
from metier.runtime.runs import open_runtime
from metier.telemetry.amounts import format_count

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MAX_DIFF_LINES = 200


@app.command(name="undo")
def undo_command(
    run: Annotated[str, typer.Argument(help="Run ID, a prefix of it, or `latest`.")] = "latest",
    *,
    to: Annotated[str, typer.Option("--to", help="First step to undo, or `undo-1`. Default: all steps.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Also restore files that changed since.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Undo a run's file changes."""
    host = open_host(config)
    plan, done = anyio.run(_undo, host, run, to, dry_run, yes)
    if as_json:
        write_json(_as_json(plan, done))
        return
    if not dry_run:
        _write_done(plan, done)
    for line in plan.unknown:
        warn_line(f"warning: Unknown changes of step {line}")
    if plan.files or plan.unknown:
        warn_line(CANNOT)


async def _undo(host: Host, name: str, to: str, dry_run: bool, yes: bool) -> tuple[UndoPlan, Undone | None]:
    async with open_runtime(host) as runtime:
        plan = await plan_undo(runtime, (await runtime.find(name)).run_id, to=to)
        for file in plan.files:
            _write_file(file, with_diff=dry_run or file.is_conflict)
        if dry_run or (not plan.waiting and plan.open_undo is None):
            return plan, None
        if plan.conflicts and not yes and not _confirm(plan):
            raise FilesChanged(
                f"{format_count(len(plan.conflicts), 'file')} changed since the run; nothing was restored",
                hint="Review the differences above, then run `agent undo --yes` to restore these files too",
            )
        # Conflicts were confirmed above, or there are none.
        return plan, await undo(runtime, plan, by=get_user(), overwrite=True)


def _confirm(plan: UndoPlan) -> bool:
    # A script must say `--yes`: its stdin may be anything.
    if not sys.stdin.isatty():
        return False
    return typer.confirm(
        f"Restore {format_count(len(plan.conflicts), 'file')} that changed since?", default=False, err=True
    )


def _write_file(file: PlannedFile, *, with_diff: bool) -> None:
    if file.is_done:
        return
    mark = f"cannot:   {file.cannot}" if file.cannot else "changed since" if file.is_conflict else ""
    warn_line(f"{file.verb + ':':<12} {printable(file.path)}  {mark}".rstrip())
    if with_diff:
        lines = file.diff.splitlines()
        for line in lines[:MAX_DIFF_LINES]:
            warn_line(f"    {printable(line)}")
        if len(lines) > MAX_DIFF_LINES:
            warn_line(f"    … {len(lines) - MAX_DIFF_LINES} more lines")


def _write_done(plan: UndoPlan, done: Undone | None) -> None:
    if done is None:
        write_line("Nothing to undo")
        return
    write_line(
        f"{done.undo_id}: {format_count(len(done.restored), 'file')} restored to the state before step {plan.to}"
    )
    for line in done.left_alone:
        warn_line(f"skipped:     {printable(line)}")


def _as_json(plan: UndoPlan, done: Undone | None) -> dict[str, JsonValue]:
    return {
        "run_id": plan.run_id,
        "to": plan.to,
        "files": [
            {
                "path": file.path,
                "action": "none" if file.is_done else file.verb,
                "conflict": file.is_conflict,
                "cannot": file.cannot,
                "diff": file.diff,
            }
            for file in plan.files
        ],
        "unknown": list(plan.unknown),
        "undo_id": done.undo_id if done else None,
        "restored": list(done.restored) if done else [],
        "left_alone": list(done.left_alone) if done else [],
    }
