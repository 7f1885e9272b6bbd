"""Where the results of an eval go: the terminal, JSON, and files for CI and for the skill creator's viewer."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import JsonValue

from metier.cli.eval.options import EvalOptions
from metier.cli.shared.output import printable, render_json, warn_line, write_json, write_line
from metier.definitions.files.whole_file import replace_file
from metier.errors import UsageError
from metier.evals.comparison import compare
from metier.evals.recordings import name_recording
from metier.evals.reports.html import render_html
from metier.evals.reports.junit import render_junit
from metier.evals.reports.skill_creator import build_benchmark, build_grading
from metier.evals.reports.text import render_comparison, render_result
from metier.evals.results import EvalResult


def write_results(results: Sequence[EvalResult], options: EvalOptions) -> None:
    """Data on stdout; files where they were asked for, without secrets as everywhere."""
    if options.junit is not None:
        _write(options.junit, printable(render_junit(results)))
    if options.html is not None:
        _write(options.html, printable(render_html(results)))
    if options.out is not None:
        for result in results:
            _write_convention(result, options.out if len(results) == 1 else options.out / name_recording(result.target))
    if options.as_json:
        write_json([build_json(result) for result in results])
        return
    for result in results:
        for line in render_comparison(result) if result.mode == "live" else render_result(result):
            write_line(line)
        if result.budget_used_up:
            warn_line("The budget was used up; raise it with --max-cost-usd and --resume, or make fewer runs")


def build_json(result: EvalResult) -> dict[str, JsonValue]:
    """The result with its numbers."""
    plain: dict[str, JsonValue] = json.loads(result.model_dump_json())
    numbers: dict[str, JsonValue] = json.loads(json.dumps(asdict(compare(result))))
    return {**plain, "share": result.share, "cost_usd": result.cost_usd, "numbers": numbers}


def _write_convention(result: EvalResult, folder: Path) -> None:
    for row in result.rows:
        parts = [name_recording(row.case_id), *([row.variant.replace(":", "-")] if row.variant else [])]
        name = folder.joinpath(*parts, *([f"run-{row.repetition}"] if result.repeat > 1 else []), "grading.json")
        _write(name, render_json(build_grading(row), indent=2) + "\n")
    _write(folder / "benchmark.json", render_json(build_benchmark(result), indent=2) + "\n")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode(), is_private=False)
    except OSError as error:
        raise UsageError(f"'{file}' cannot be written: {error.strerror}", hint="Name another file") from error
