"""An eval for people: a line per case, failed checks with what was found, the numbers of a comparison. Pure."""

from collections.abc import Iterator

from metier.evals.comparison import Comparison, VariantSummary, compare
from metier.evals.results import EvalResult, RunRow, Status

WORDS: dict[Status, str] = {
    "passed": "ok",
    "failed": "FAILED",
    "not_checked": "not checked",
    "stale": "STALE",
    "missing": "MISSING",
    "error": "ERROR",
    "not_run": "not run",
}


def render_row(row: RunRow, *, target: str = "") -> list[str]:
    """What to say about one run."""
    where = f"{row.file}:{row.line}"
    unchecked = sum(grade.verdict == "not_checked" for grade in row.grades)
    notes = [f"{row.variant} {row.repetition}"] if row.variant else []
    notes += [f"{unchecked} not checked"] if unchecked and row.status in ("passed", "failed") else []
    name = f"{row.case_id}{f' ({row.name})' if row.name and row.name != row.case_id else ''}"
    note = f"  [{', '.join(notes)}]" if notes else ""
    lines = [f"  {WORDS[row.status]:<12}{name}{note}"]
    lines += [f"      {reason}" for reason in row.reasons]
    if row.status == "failed":
        for grade in row.failures:
            lines += [f"      {grade.text}", f"        {grade.evidence}", f"        {where}"]
    return lines if not target else [target, *lines]


def render_result(result: EvalResult) -> list[str]:
    """The whole of a replay or a recording."""
    lines = [f"{result.target}  {_count(result)}"]
    for row in result.rows:
        lines += render_row(row)
    return lines


def _count(result: EvalResult) -> str:
    own = result.own
    parts = [f"{result.count('passed')} of {len(own)} passed"]
    others: tuple[Status, ...] = ("failed", "stale", "missing", "not_checked", "error", "not_run")
    parts += [f"{count} {status.replace('_', ' ')}" for status in others if (count := result.count(status))]
    return ", ".join(parts)


def render_comparison(result: EvalResult) -> list[str]:
    """The numbers of a live eval."""
    found = compare(result)
    lines = [f"{result.target}  {_count(result)}"]
    lines += [f"  {_describe(variant)}" for variant in found.variants]
    lines += list(_render_difference(found, result))
    if len(result.variants) > 1 or result.repeat > 1:
        lines += list(_render_cases(found))
    return lines


def _describe(variant: VariantSummary) -> str:
    rate = variant.rate
    shown = (
        f"{rate.mean:.0%} passed ({rate.passed}/{rate.total}), 95% {rate.interval.low:.0%} to {rate.interval.high:.0%}"
    )
    cost = f"{variant.cost_usd.mean:.4f} ± {variant.cost_usd.stddev:.4f} USD"
    time = f"{variant.seconds.mean:.1f} ± {variant.seconds.stddev:.1f} s"
    tokens = f"{variant.tokens.mean:.0f} ± {variant.tokens.stddev:.0f} tokens"
    undecided = f"; {variant.undecided} undecided" if variant.undecided else ""
    return f"{variant.name or 'now':<16} {shown}; {cost}, {time}, {tokens} a run{undecided}"


def _render_difference(found: Comparison, result: EvalResult) -> Iterator[str]:
    difference = found.difference
    if difference is None:
        return
    interval = difference.interval
    yield (
        f"  {difference.mean:+.0%} against {result.variants[1]} over {difference.pairs} pairs, "
        f"95% {interval.low:+.0%} to {interval.high:+.0%}: {difference.verdict}"
    )
    yield f"  {found.cost_difference or 0:+.4f} USD and {found.seconds_difference or 0:+.1f} s a run"


def _render_cases(found: Comparison) -> Iterator[str]:
    for case in found.cases:
        rates = "  ".join(f"{rate.passed}/{rate.total}" for rate in case.rates)
        yield f"    {case.case_id:<24} {rates}"
