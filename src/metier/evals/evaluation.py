"""Grades a run: collects evidence, runs the check functions of a pack, and applies the judge's verdicts.

Each function has its own process, confined like the scripts of a skill.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from metier.errors import MetierError, ToolFailed
from metier.evals.bench import list_content
from metier.evals.cases import PythonCheck, Sentence
from metier.evals.eval_files import find_case_file
from metier.evals.eval_results import RunRow, build_row, judge_grades
from metier.evals.evidence import Evidence, build_evidence
from metier.evals.grading import Found, Outside, grade_all
from metier.evals.recordings import Judged
from metier.evals.targets import SourcedCase, Target, read_within
from metier.runtime.confinement import open_confinement
from metier.runtime.history.archive import Archive
from metier.runtime.host import Host
from metier.tools.process.child_environment import build_environment
from metier.tools.process.json_lines import ChildModule, JsonLinesChild

TIMEOUT_SECONDS = 30
_SHOWN = 500


async def call_functions(
    checks: Sequence[PythonCheck], evidence: Evidence, *, target: Target, sourced: SourcedCase, host: Host
) -> dict[str, Found]:
    """Call check functions. A check fails if its function can't be called or raises."""
    if not checks:
        return {}
    try:
        # The functions come with the target, so they need its trust like any other code of it.
        target.check_trusted()
    except MetierError as error:
        return {check.function: Found(holds=False, evidence=f"Not run: {error.message}") for check in checks}
    rendered = render_evidence(evidence)
    return {check.function: await _call(check, rendered, sourced=sourced, host=host) for check in checks}


def render_evidence(evidence: Evidence) -> dict[str, JsonValue]:
    """Return the evidence as plain values, for a check function."""
    return {
        "result": evidence.result,
        "status": evidence.status,
        "exit_code": evidence.exit_code,
        "turns": evidence.turns,
        "tokens": evidence.tokens,
        "cost_usd": evidence.cost_usd,
        "skills": list(evidence.skills),
        "calls": [
            {"tool": call.tool, "arguments": call.arguments, "status": call.status, "text": call.text}
            for call in evidence.calls
        ],
        "files": {path: text for path in sorted(evidence.files) if (text := evidence.read(path)) is not None},
    }


async def _call(check: PythonCheck, evidence: dict[str, JsonValue], *, sourced: SourcedCase, host: Host) -> Found:
    file, _, function = check.function.partition(":")
    found = find_case_file(sourced.folder, file)
    if found is None:
        return Found(holds=False, evidence=f"File {file!r} is missing")
    path = sourced.folder / found
    confinement = await open_confinement(host)
    with tempfile.TemporaryDirectory(prefix="agent-eval-check-") as folder:
        child = ChildModule(
            module="metier.evals.python_caller",
            subject="The check",
            folder=Path(folder),
            environment=build_environment(host.environ),
            confinement=confinement.opened(Path(folder), path.parent),
        )
        request: dict[str, JsonValue] = {"file": str(path), "function": function, "evidence": evidence}
        try:
            async with await JsonLinesChild.start(child) as running:
                reply = await running.ask(request, timeout_seconds=TIMEOUT_SECONDS)
        except ToolFailed as error:
            return Found(holds=False, evidence=error.message)
    return Found(reply.get("passed") is True, str(reply.get("evidence", ""))[:_SHOWN])


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
    row: RunRow, evidence: Evidence, *, target: Target, sourced: SourcedCase, host: Host, judged: Mapping[str, Judged]
) -> RunRow:
    """Return the row with a verdict for every check. `judged` maps sentences to the judge's verdicts."""
    case = sourced.case
    functions = [check for check in case.checks if isinstance(check, PythonCheck)]
    said = await call_functions(functions, evidence, target=target, sourced=sourced, host=host)

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
