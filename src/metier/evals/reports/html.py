"""An eval as one HTML page: no script, no address of anything else, text of runs never as markup. Pure."""

from collections.abc import Iterator, Sequence
from html import escape

from metier.evals.comparison import compare
from metier.evals.reports.text import WORDS
from metier.evals.results import EvalResult, GradeRow, RunRow
from metier.telemetry.sanitize import sanitize

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
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


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
    yield "<table><thead><tr><th>Variant</th><th>Passed</th><th>95%</th><th>USD</th><th>Seconds</th></tr></thead>"
    yield "<tbody>"
    for variant in found.variants:
        rate = variant.rate
        yield (
            f"<tr><td>{_text(variant.name)}</td><td>{rate.mean:.0%} ({rate.passed}/{rate.total})</td>"
            f"<td>{rate.interval.low:.0%} to {rate.interval.high:.0%}</td>"
            f"<td>{variant.cost_usd.mean:.4f} ± {variant.cost_usd.stddev:.4f}</td>"
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
        f"<td>{row.turns}</td><td>{row.cost_usd:.4f}</td></tr>"
    )


def _render_grade(grade: GradeRow) -> str:
    return f'<span class="{grade.verdict}">{_text(grade.text)}</span>: {_text(grade.evidence)}'


def _text(value: str) -> str:
    return escape(sanitize(value))
