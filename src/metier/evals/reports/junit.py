"""An eval as JUnit XML, which CI systems show beside unit tests. Pure."""

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from metier.evals.results import EvalResult, RunRow
from metier.telemetry.sanitize import sanitize


def render_junit(results: Sequence[EvalResult]) -> str:
    """A suite per target, a test case per run. A run that was not checked or not made is skipped, never passed."""
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
            ET.SubElement(case, "skipped", message=_clean("; ".join(row.reasons) or "No check decides this case"))
        case "error":
            ET.SubElement(case, "error", message=_clean("; ".join(row.reasons)))
        case "stale" | "missing":
            ET.SubElement(case, "failure", type=row.status, message=_clean("; ".join(row.reasons)))
        case "failed":
            first = row.failures[0]
            failure = ET.SubElement(case, "failure", type=first.check, message=_clean(first.text))
            failure.text = _clean("\n".join(f"{grade.text}\n  {grade.evidence}" for grade in row.failures))


def _clean(text: str) -> str:
    """XML has no place for control characters."""
    return sanitize(text)
