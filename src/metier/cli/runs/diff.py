"""`agent runs diff`: where two runs part."""

from typing import Annotated

import anyio
import typer
from msgspec import to_builtins
from pydantic import JsonValue

from metier.cli.runs.replay import write_difference
from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import AsJson, Config
from metier.cli.shared.output import count, write_json, write_line
from metier.engine.replay.recording import Difference
from metier.runtime.history.comparison import Comparison, Moment, compare_runs
from metier.runtime.history.run_views import read_history
from metier.runtime.runs import open_runtime

_SHOWN = 10


def attach(app: typer.Typer) -> None:
    app.command("diff")(diff)


def diff(
    left: Annotated[str, typer.Argument(help="Run ID, a prefix of it, or `latest`.")],
    right: Annotated[str, typer.Argument(help="Run to compare with.")],
    *,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Compare two runs and show the first difference.

    Exit code 1: the runs differ.
    """

    async def work() -> tuple[str, str, Comparison]:
        async with open_runtime(open_host(config)) as runtime:
            rows = [await runtime.find(name) for name in (left, right)]
            one, other = [await read_history(runtime, row.run_id) for row in rows]
            return rows[0].run_id, rows[1].run_id, compare_runs(one, other)

    one, other, comparison = anyio.run(work)
    if as_json:
        write_json({"left": one, "right": other, **_build(comparison)})
    else:
        _write(one, other, comparison)
    return 0 if comparison.is_equal else 1


def _build(comparison: Comparison) -> dict[str, JsonValue]:
    return {
        "equal": comparison.is_equal,
        "same": comparison.same,
        "turn": comparison.turn,
        "left_moment": to_builtins(comparison.left) if comparison.left else None,
        "right_moment": to_builtins(comparison.right) if comparison.right else None,
        "differences": [_build_difference(found) for found in comparison.differences],
        "beginnings": [_build_difference(found) for found in comparison.beginnings],
    }


def _build_difference(difference: Difference) -> JsonValue:
    return {"path": difference.path, "left": difference.recorded, "right": difference.replayed}


def _write(one: str, other: str, comparison: Comparison) -> None:
    for difference in comparison.beginnings[:_SHOWN]:
        write_difference(difference, left=one, right=other)
    if comparison.is_equal:
        write_line(f"Runs match: {comparison.same} of {comparison.same} decisions, steps and results")
        return
    where = f"in turn {comparison.turn}" if comparison.turn else "before the first turn"
    write_line(f"Runs differ {where}, after {count(comparison.same, 'identical entry', 'identical entries')}")
    if not comparison.differences:
        write_difference(Difference("next", _name(comparison.left), _name(comparison.right)), left=one, right=other)
    elif comparison.left is not None:
        write_line(f"  {_name(comparison.left)}")
    for difference in comparison.differences[:_SHOWN]:
        write_difference(difference, left=one, right=other)


def _name(moment: Moment | None) -> str:
    return f"entry {moment.number}: {moment.kind}" if moment is not None else "no more entries"
