"""Eval reports as text, HTML, JUnit XML, and in the format of the skill creator's viewer."""

from collections.abc import Iterator, Sequence
from html import escape
from xml.etree import ElementTree as ET

from msgspec import Struct
from pydantic import JsonValue

from metier.evals.bench import WITH, WITHOUT
from metier.evals.eval_results import EvalResult, RunRow, Status
from metier.evals.grading import Grade
from metier.evals.statistics import Comparison, VariantSummary, compare, measure_spread
from metier.telemetry.amounts import format_cost
from metier.telemetry.sanitize import sanitize

WORDS: dict[Status, str] = {
    "passed": "ok",
    "failed": "FAILED",
    "not_checked": "not checked",
    "stale": "STALE",
    "missing": "MISSING",
    "error": "ERROR",
    "not_run": "not run",
}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { border-bottom: 1px solid #ddd; padding: .4rem .6rem; text-align: left; vertical-align: top; }
.passed { color: #176639; } .failed, .stale, .missing, .error { color: #a3150f; font-weight: 600; }
.not_checked, .not_run { color: #6b5b00; }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .6rem; max-height: 20rem; overflow: auto; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #e8e8e8; } pre { background: #222; }
th, td { border-color: #333; } .passed { color: #6fd39b; } .failed, .stale, .missing, .error { color: #ff8a80; } }
"""
# Answers in a report are hostile text: if escaping ever missed something, it could neither load nor run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_row(row: RunRow, *, target: str = "") -> list[str]:
    """Describe one run."""
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
    """Describe a replay or a recording."""
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
    """Describe the statistics of a live eval."""
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
    cost = _format_cost(variant)
    time = f"{variant.seconds.mean:.1f} ± {variant.seconds.stddev:.1f} s"
    tokens = f"{variant.tokens.mean:.0f} ± {variant.tokens.stddev:.0f} tokens"
    undecided = f"; {variant.undecided} undecided" if variant.undecided else ""
    return f"{variant.name or 'now':<16} {shown}; {cost}, {time}, {tokens} a run{undecided}"


def _format_cost(variant: VariantSummary) -> str:
    return f"{format_cost(variant.cost_usd.mean)} ± {format_cost(variant.cost_usd.stddev)}"


def _render_difference(found: Comparison, result: EvalResult) -> Iterator[str]:
    difference = found.difference
    if difference is None:
        return
    interval = difference.interval
    yield (
        f"  {difference.mean:+.0%} against {result.variants[1]} over {difference.pairs} pairs, "
        f"95% {interval.low:+.0%} to {interval.high:+.0%}: {difference.verdict}"
    )
    cost = found.cost_difference or 0.0
    yield f"  {'-' if cost < 0 else '+'}{format_cost(abs(cost))} and {found.seconds_difference or 0:+.1f} s a run"


def _render_cases(found: Comparison) -> Iterator[str]:
    for case in found.cases:
        rates = "  ".join(f"{rate.passed}/{rate.total}" for rate in case.rates)
        yield f"    {case.case_id:<24} {rates}"


def render_html(results: Sequence[EvalResult]) -> str:
    body = "\n".join(part for result in results for part in _render(result))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>agent eval</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Evals</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def _render(result: EvalResult) -> Iterator[str]:
    model = f" · {_text(result.provider)} {_text(result.model)}" if result.provider else ""
    commit = f" · commit {_text(result.commit[:12])}" if result.commit else ""
    yield f"<h2>{_text(result.target)}</h2>"
    yield f"<p>{_text(result.mode)} · {_text(result.started_at)}{model}{commit} · {result.share:.0%} passed</p>"
    if result.mode == "live":
        yield from _render_numbers(result)
    yield "<table><thead><tr><th>Case</th><th>Result</th><th>Checks</th><th>Turns</th><th>Cost</th></tr></thead><tbody>"
    yield from (_render_row(row) for row in result.rows)
    yield "</tbody></table>"


def _render_numbers(result: EvalResult) -> Iterator[str]:
    found = compare(result)
    yield "<table><thead><tr><th>Variant</th><th>Passed</th><th>95%</th><th>Cost</th><th>Seconds</th></tr></thead>"
    yield "<tbody>"
    for variant in found.variants:
        rate = variant.rate
        yield (
            f"<tr><td>{_text(variant.name)}</td><td>{rate.mean:.0%} ({rate.passed}/{rate.total})</td>"
            f"<td>{rate.interval.low:.0%} to {rate.interval.high:.0%}</td>"
            f"<td>{_format_cost(variant)}</td>"
            f"<td>{variant.seconds.mean:.1f} ± {variant.seconds.stddev:.1f}</td></tr>"
        )
    yield "</tbody></table>"
    if found.difference is not None:
        interval = found.difference.interval
        yield (
            f"<p>{found.difference.mean:+.0%} against {_text(result.variants[1])}, 95% {interval.low:+.0%} to "
            f"{interval.high:+.0%}: {_text(found.difference.verdict)}</p>"
        )


def _render_row(row: RunRow) -> str:
    name = f"{row.case_id}{f' · {row.variant} {row.repetition}' if row.variant else ''}"
    checks = "".join(f"<li>{_render_grade(grade)}</li>" for grade in row.grades)
    reasons = "".join(f"<p>{_text(reason)}</p>" for reason in row.reasons)
    answer = f"<details><summary>Answer</summary><pre>{_text(row.result)}</pre></details>" if row.result else ""
    return (
        f"<tr><td>{_text(name)}<br><small>{_text(row.file)}:{row.line}</small></td>"
        f'<td class="{row.status}">{_text(WORDS[row.status])}</td><td>{reasons}<ul>{checks}</ul>{answer}</td>'
        f"<td>{row.turns}</td><td>{format_cost(row.cost_usd)}</td></tr>"
    )


def _render_grade(grade: Grade) -> str:
    return f'<span class="{grade.verdict}">{_text(grade.text)}</span>: {_text(grade.evidence)}'


def _text(value: str) -> str:
    return escape(sanitize(value))


def render_junit(results: Sequence[EvalResult]) -> str:
    """Render a suite per target with a test case per run. A run that was not checked is skipped, never passed."""
    root = ET.Element("testsuites", name="agent eval")
    for result in results:
        rows = result.own
        suite = ET.SubElement(
            root,
            "testsuite",
            name=result.target,
            tests=str(len(rows)),
            failures=str(sum(row.status in ("failed", "stale", "missing") for row in rows)),
            errors=str(sum(row.status == "error" for row in rows)),
            skipped=str(sum(row.status in ("not_checked", "not_run") for row in rows)),
            timestamp=result.started_at,
        )
        for row in rows:
            _add(suite, row, result)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _add(suite: ET.Element, row: RunRow, result: EvalResult) -> None:
    number = f" #{row.repetition}" if result.repeat > 1 else ""
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_clean(result.target),
        name=_clean(f"{row.case_id}{number}"),
        file=_clean(row.file),
        line=str(row.line),
        time=f"{row.seconds:.3f}",
    )
    match row.status:
        case "passed":
            pass
        case "not_checked" | "not_run":
            ET.SubElement(case, "skipped", message=_clean("; ".join(row.reasons) or "No check decided this case"))
        case "error":
            ET.SubElement(case, "error", message=_clean("; ".join(row.reasons)))
        # A build must not pass by a recording that says nothing about the current files.
        case "stale" | "missing":
            ET.SubElement(case, "failure", type=row.status, message=_clean("; ".join(row.reasons)))
        case "failed":
            first = row.failures[0]
            failure = ET.SubElement(case, "failure", type=first.check, message=_clean(first.text))
            failure.text = _clean("\n".join(f"{grade.text}\n  {grade.evidence}" for grade in row.failures))


def _clean(text: str) -> str:
    """Remove control characters, which XML cannot contain."""
    return sanitize(text)


type Json = dict[str, JsonValue]


# The format only knows passed and failed. A check that was not made is listed as failed with a note in its evidence,
# and the rates exclude it.
def build_grading(row: RunRow) -> Json:
    """Return the `grading.json` of one run."""
    counts = _count_expectations(row)
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
    """Return the `benchmark.json` of an eval: its first variant is `with_skill`, the second `without_skill`."""
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


class _Counts(Struct, frozen=True):
    passed: int
    failed: int

    @property
    def rate(self) -> float:
        total = self.passed + self.failed
        return round(self.passed / total, 4) if total else 0.0


def _count_expectations(row: RunRow) -> _Counts:
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
    counts = _count_expectations(row)
    notes: list[JsonValue] = list(row.reasons)
    return {
        # The viewer expects numbers.
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
        "pass_rate": _spread([_count_expectations(row).rate for row in rows]),
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

    rate = take([_count_expectations(row).rate for row in first], [_count_expectations(row).rate for row in second])
    time = take([row.seconds for row in first], [row.seconds for row in second])
    tokens = take([float(row.tokens) for row in first], [float(row.tokens) for row in second])
    return {"pass_rate": f"{rate:+.2f}", "time_seconds": f"{time:+.1f}", "tokens": f"{tokens:+.0f}"}
