"""From evidence to a row: run the functions, take the judge's verdicts, grade. Shared by replay, recording and live."""

from collections.abc import Mapping

from metier.evals.bench import list_content
from metier.evals.evidence import Evidence, build_evidence
from metier.evals.format.checks import PythonCheck, Sentence
from metier.evals.format.reading import find_case_file
from metier.evals.grading import Found, Outside, grade_all
from metier.evals.python_checks import call_functions
from metier.evals.recordings import Judged
from metier.evals.results import RunRow, build_row, judge_grades
from metier.evals.targets import SourcedCase, Target, read_within
from metier.runtime.history.archive import Archive
from metier.runtime.host import Host


def begin_row(sourced: SourcedCase, *, variant: str = "", repetition: int = 1) -> RunRow:
    case = sourced.case
    return RunRow(
        case_id=case.id,
        name=case.name,
        file=sourced.file,
        line=case.line,
        variant=variant,
        repetition=repetition,
        status="not_run",
    )


def open_evidence(archive: Archive, sourced: SourcedCase) -> Evidence:
    return build_evidence(archive, given=list_content(sourced))


async def evaluate(
    row: RunRow, evidence: Evidence, *, target: Target, sourced: SourcedCase, place: Host, judged: Mapping[str, Judged]
) -> RunRow:
    """The row with a verdict for every check. `judged` has what a judge said of this run, by sentence."""
    case = sourced.case
    functions = [check for check in case.checks if isinstance(check, PythonCheck)]
    said = await call_functions(functions, evidence, target=target, sourced=sourced, place=place)

    def find_judged(sentence: Sentence) -> Found | None:
        verdict = judged.get(sentence.text)
        return Found(verdict.passed, verdict.evidence) if verdict is not None else None

    def read_expected(name: str) -> str | None:
        found = find_case_file(sourced.folder, name)
        return read_within(sourced.folder, sourced.folder / found).decode("utf-8", "replace") if found else None

    outside = Outside(python=lambda check: said.get(check.function), sentences=find_judged, expected=read_expected)
    grades = grade_all(case.checks, evidence, outside)
    built = build_row(row, evidence, grades)
    return built.model_copy(update={"status": judge_grades(grades)})
