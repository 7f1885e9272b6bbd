"""Results in the files of the skill creator's convention, whose viewer opens them: `grading.json`, `benchmark.json`.

The convention knows `passed` and not. What was not checked is not passed there either, its evidence says so, and the
rates leave it out.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.evals.results import EvalResult, RunRow
from metier.evals.statistics import measure_spread
from metier.evals.variants import WITH, WITHOUT

type Json = dict[str, JsonValue]


def build_grading(row: RunRow) -> Json:
    """The `grading.json` of one run."""
    counts = _count(row)
    calls: Json = dict(row.tool_calls)
    unchecked: list[JsonValue] = [each.text for each in row.grades if each.verdict == "not_checked"]
    return {
        "expectations": _expectations(row),
        "summary": {
            "passed": counts.passed,
            "failed": counts.failed,
            "total": counts.passed + counts.failed,
            "pass_rate": counts.rate,
        },
        "execution_metrics": {
            "tool_calls": calls,
            "total_tool_calls": sum(row.tool_calls.values()),
            "total_steps": row.turns,
            "errors_encountered": row.errors,
            "output_chars": len(row.result),
            "transcript_chars": 0,
        },
        "timing": {"executor_duration_seconds": row.seconds, "total_duration_seconds": row.seconds},
        "claims": [],
        "user_notes_summary": {"uncertainties": [], "needs_review": unchecked, "workarounds": []},
    }


def build_benchmark(result: EvalResult) -> Json:
    """The `benchmark.json` of an eval. The first variant is its `with_skill`, the second its `without_skill`."""
    names = result.variants or ("",)
    known = dict(zip(names, (WITH, WITHOUT), strict=False))
    ids = list(dict.fromkeys(row.case_id for row in result.rows))
    runs: list[JsonValue] = [
        _build_run(row, configuration=known[row.variant], number=ids.index(row.case_id) + 1)
        for row in result.rows
        if row.variant in known
    ]
    summary: Json = {known[name]: _summarize([row for row in result.rows if row.variant == name]) for name in known}
    if len(known) > 1:
        summary["delta"] = _build_delta(result, names)
    listed: list[JsonValue] = list(ids)
    notes: list[JsonValue] = [f"{known[name]} is {name}" for name in known if known[name] != name and name]
    return {
        "metadata": {
            "skill_name": result.target.partition(":")[2],
            "executor_model": result.model,
            "timestamp": result.started_at,
            "evals_run": listed,
            "runs_per_configuration": result.repeat,
        },
        "runs": runs,
        "run_summary": summary,
        "notes": notes,
    }


@dataclass(frozen=True, slots=True)
class _Counts:
    passed: int
    failed: int

    @property
    def rate(self) -> float:
        total = self.passed + self.failed
        return round(self.passed / total, 4) if total else 0.0


def _count(row: RunRow) -> _Counts:
    verdicts = [grade.verdict for grade in row.grades]
    return _Counts(verdicts.count("passed"), verdicts.count("failed"))


def _expectations(row: RunRow) -> list[JsonValue]:
    return [
        {
            "text": grade.text,
            "passed": grade.verdict == "passed",
            "evidence": grade.evidence if grade.verdict != "not_checked" else f"Not checked: {grade.evidence}",
        }
        for grade in row.grades
    ]


def _build_run(row: RunRow, *, configuration: str, number: int) -> Json:
    counts = _count(row)
    notes: list[JsonValue] = list(row.reasons)
    return {
        "eval_id": int(row.case_id) if row.case_id.isdigit() else number,
        "eval_name": row.name or row.case_id,
        "configuration": configuration,
        "run_number": row.repetition,
        "result": {
            "pass_rate": counts.rate,
            "passed": counts.passed,
            "failed": counts.failed,
            "total": counts.passed + counts.failed,
            "time_seconds": row.seconds,
            "tokens": row.tokens,
            "tool_calls": sum(row.tool_calls.values()),
            "errors": row.errors,
        },
        "expectations": _expectations(row),
        "notes": notes,
    }


def _summarize(rows: Sequence[RunRow]) -> Json:
    return {
        "pass_rate": _spread([_count(row).rate for row in rows]),
        "time_seconds": _spread([row.seconds for row in rows]),
        "tokens": _spread([float(row.tokens) for row in rows]),
    }


def _spread(values: Sequence[float]) -> Json:
    found = measure_spread(values)
    return {
        "mean": round(found.mean, 4),
        "stddev": round(found.stddev, 4),
        "min": round(found.low, 4),
        "max": round(found.high, 4),
    }


def _build_delta(result: EvalResult, names: Sequence[str]) -> Json:
    first, second = ([row for row in result.rows if row.variant == name] for name in names[:2])

    def take(values: Sequence[float], others: Sequence[float]) -> float:
        return measure_spread(values).mean - measure_spread(others).mean

    rate = take([_count(row).rate for row in first], [_count(row).rate for row in second])
    time = take([row.seconds for row in first], [row.seconds for row in second])
    tokens = take([float(row.tokens) for row in first], [float(row.tokens) for row in second])
    return {"pass_rate": f"{rate:+.2f}", "time_seconds": f"{time:+.1f}", "tokens": f"{tokens:+.0f}"}
