"""`agent runs show --changes`: what each step of a run did to files."""

from pathlib import Path
from typing import TypedDict

import anyio

from metier.cli.run.driving import open_place
from metier.cli.shared.output import printable, write_json, write_line
from metier.runtime.history.undo import read_effects, render_change
from metier.runtime.runs import open_runtime


def show_changes(run: str, *, as_json: bool, config: Path | None) -> None:
    """Steps without a change are left out; one whose changes are not known says why."""
    told = anyio.run(_read, run, config)
    if as_json:
        write_json([{**step} for step in told])
        return
    for step in told:
        write_line(f"step {step['step']}: {step['tool']}{_mark(step['unknown'])}")
        for path, diff in step["changes"].items():
            write_line(printable(diff).rstrip() or f"{printable(path)}: another mode")
    if not told:
        write_line("No file was changed")


def _mark(unknown: str) -> str:
    return f", changes not known: {unknown}" if unknown else ""


class Told(TypedDict):
    step: str
    tool: str
    unknown: str
    changes: dict[str, str]
    """Path → diff."""


async def _read(name: str, config: Path | None) -> list[Told]:
    async with open_runtime(open_place(config)) as runtime:
        effects = await read_effects(runtime, (await runtime.find(name)).run_id)
        return [
            {
                "step": effect.name,
                "tool": effect.what,
                "unknown": effect.unknown,
                "changes": {change.path: await render_change(runtime, change) for change in effect.changes},
            }
            for effect in effects
            if effect.changes or effect.unknown
        ]
