"""`agent runs show --changes`: what each step of a run did to files."""

from dataclasses import asdict
from pathlib import Path

import anyio

from metier.cli.shared.output import printable, write_json, write_line
from metier.cli.shared.place import open_place
from metier.runtime.history.undo import StepChanges, read_changes
from metier.runtime.runs import open_runtime


def show_changes(run: str, *, as_json: bool, config: Path | None) -> None:
    """Steps without a change are left out; one whose changes are not known says why."""
    told = anyio.run(_read, run, config)
    if as_json:
        write_json([asdict(step) for step in told])
        return
    for step in told:
        write_line(f"step {step.step}: {step.tool}{_mark(step.unknown)}")
        for path, diff in step.changes.items():
            write_line(printable(diff).rstrip() or f"{printable(path)}: another mode")
    if not told:
        write_line("No file was changed")


def _mark(unknown: str) -> str:
    return f", changes not known: {unknown}" if unknown else ""


async def _read(name: str, config: Path | None) -> list[StepChanges]:
    async with open_runtime(open_place(config)) as runtime:
        return await read_changes(runtime, (await runtime.find(name)).run_id)
