"""Results of evals, their JSON files in the runs folder, and their history for the console page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from pydantic import Field, ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.evals.evidence import Evidence
from metier.evals.grading import Grade
from metier.runtime.records.run_folders import prepare_runs_folder
from metier.values import Value

FOLDER = "evals"
"""Folder of the evals in the runs folder."""
RESULT = "result.json"
MAX_SHOWN = 20
"""Maximum number of evals of a target on the console page; the latest ones."""

type Mode = Literal["replay", "record", "live"]
type Status = Literal["passed", "failed", "not_checked", "stale", "missing", "error", "not_run"]
"""`stale`: the recording is of an older version. `missing`: there is no recording. `error`: the provider failed.
`not_run`: the budget was used up.
"""


class RunRow(Value):
    """One run of one case."""

    case_id: str
    name: str = ""
    file: str = ""
    line: int = 1
    variant: str = ""
    repetition: int = 1
    status: Status
    reasons: tuple[str, ...] = ()
    """Reasons for the status `stale`, `missing`, `error` or `not_run`."""
    grades: tuple[Grade, ...] = ()
    run_id: str = ""
    result: str = ""
    turns: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    tool_calls: dict[str, int] = Field(default_factory=dict)
    errors: int = 0
    judge_cost_usd: float = 0.0

    @property
    def has_passed(self) -> bool:
        return self.status == "passed"

    @property
    def failures(self) -> tuple[Grade, ...]:
        return tuple(grade for grade in self.grades if grade.verdict == "failed")


class EvalResult(Value):
    """The result of `agent eval` for one target."""

    id: str
    target: str
    mode: Mode
    started_at: str
    commit: str = ""
    """Commit of the target's folder, if it is in a repository."""
    provider: str = ""
    model: str = ""
    repeat: int = 1
    variants: tuple[str, ...] = ()
    """The first variant is compared with the threshold; the second is its baseline."""
    rows: tuple[RunRow, ...] = ()
    budget_used_up: bool = False
    suggested_words: tuple[str, ...] = ()
    """Suggested words for the skill's description, if requested."""

    @property
    def own(self) -> tuple[RunRow, ...]:
        """Runs of the target itself."""
        return tuple(row for row in self.rows if not self.variants or row.variant == self.variants[0])

    @property
    def share(self) -> float:
        """Share of the runs that passed. Unchecked runs count as not passed."""
        return sum(row.has_passed for row in self.own) / len(self.own) if self.own else 0.0

    @property
    def cost_usd(self) -> float:
        return sum(row.cost_usd + row.judge_cost_usd for row in self.rows)

    def count(self, status: Status) -> int:
        return sum(row.status == status for row in self.own)


def judge_grades(grades: Sequence[Grade]) -> Status:
    """Return `failed` if a check failed, `passed` if one passed and none failed, else `not_checked`."""
    verdicts = {grade.verdict for grade in grades}
    if "failed" in verdicts:
        return "failed"
    return "passed" if "passed" in verdicts else "not_checked"


def build_row(row: RunRow, evidence: Evidence, grades: Sequence[Grade]) -> RunRow:
    """Return the row with the run's outcome and its existing status."""
    counts: dict[str, int] = {}
    for call in evidence.calls:
        counts[call.tool] = counts.get(call.tool, 0) + 1
    return row.model_copy(
        update={
            "grades": tuple(grades),
            "run_id": evidence.run_id,
            "result": evidence.result,
            "turns": evidence.turns,
            "tokens": evidence.tokens,
            "cost_usd": evidence.cost_usd,
            "seconds": evidence.duration_seconds,
            "tool_calls": counts,
            "errors": sum(call.status in ("failed", "timeout", "denied") for call in evidence.calls),
        }
    )


def save_result(runs: Path, result: EvalResult) -> Path:
    """Store a result. Raises `OSError`."""
    prepare_runs_folder(runs)
    file = runs / FOLDER / result.id / RESULT
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, result.model_dump_json(indent=1).encode() + b"\n")
    return file


def load_results(runs: Path, *, target: str = "") -> list[EvalResult]:
    """Load the readable results, oldest first."""
    found: list[EvalResult] = []
    for file in (runs / FOLDER).glob(f"*/{RESULT}"):
        try:
            result = EvalResult.model_validate_json(file.read_bytes())
        # A result of another version must not hide the others.
        except (OSError, ValidationError):
            continue
        if not target or result.target == target:
            found.append(result)
    return sorted(found, key=lambda result: (result.started_at, result.id))


class Point(Struct, frozen=True, kw_only=True):
    """An eval in the history of a target."""

    id: str
    started_at: str
    commit: str
    mode: str
    share: float
    passed: int
    total: int
    cost_usd: float


class CaseLine(Struct, frozen=True, kw_only=True):
    """One case over time."""

    case_id: str
    name: str
    statuses: tuple[Status | None, ...]
    """Status per point; None if the eval did not include the case."""
    latest: RunRow | None


class Regression(Struct, frozen=True, kw_only=True):
    """A case whose status changed since the previous commit."""

    case_id: str
    before: Status
    after: Status
    is_worse: bool
    is_better: bool
    """True if the case passes now. A stale case has not improved, because it was not checked."""
    check: str
    """The first failing check, or the reason why the case is stale."""


class TargetPage(Struct, frozen=True, kw_only=True):
    target: str
    points: tuple[Point, ...]
    """Evals, oldest first."""
    cases: tuple[CaseLine, ...]
    before: Point | None
    """The baseline: the newest eval of another commit, or the previous eval without commits."""
    changes: tuple[Regression, ...]
    """Changed cases, regressions first."""


def build_page(results: Sequence[EvalResult]) -> tuple[TargetPage, ...]:
    """Combine results for the evals page: one part per target, last evaluated first."""
    by_target: dict[str, list[EvalResult]] = {}
    for result in results:
        by_target.setdefault(result.target, []).append(result)
    newest = sorted(by_target.values(), key=lambda listed: listed[-1].started_at, reverse=True)
    return tuple(_build_target(listed[-MAX_SHOWN:]) for listed in newest)


def _build_target(results: Sequence[EvalResult]) -> TargetPage:
    last = results[-1]
    before = _find_before(results)
    ids = list(dict.fromkeys(row.case_id for result in results for row in result.own))
    return TargetPage(
        target=last.target,
        points=tuple(_build_point(result) for result in results),
        cases=tuple(_build_line(case_id, results) for case_id in ids),
        before=_build_point(before) if before is not None else None,
        changes=_compare(before, last) if before is not None else (),
    )


def _find_before(results: Sequence[EvalResult]) -> EvalResult | None:
    last = results[-1]
    others = [result for result in results[:-1] if not last.commit or result.commit != last.commit]
    return others[-1] if others else None


def _build_point(result: EvalResult) -> Point:
    return Point(
        id=result.id,
        started_at=result.started_at,
        commit=result.commit,
        mode=result.mode,
        share=result.share,
        passed=result.count("passed"),
        total=len(result.own),
        cost_usd=result.cost_usd,
    )


def _build_line(case_id: str, results: Sequence[EvalResult]) -> CaseLine:
    statuses: tuple[Status | None, ...] = tuple(find_status(case_id, result) for result in results)
    rows = [row for row in results[-1].own if row.case_id == case_id]
    name = next((row.name for result in reversed(results) for row in result.own if row.case_id == case_id), "")
    return CaseLine(case_id=case_id, name=name, statuses=statuses, latest=rows[-1] if rows else None)


def find_status(case_id: str, result: EvalResult) -> Status | None:
    """Return the worst status of repeated runs, so that a flaky case stands out."""
    found: list[Status] = [row.status for row in result.own if row.case_id == case_id]
    worse: list[Status] = [status for status in found if status != "passed"]
    return worse[0] if worse else found[0] if found else None


def _compare(before: EvalResult, after: EvalResult) -> tuple[Regression, ...]:
    changes: list[Regression] = []
    for case_id in dict.fromkeys(row.case_id for row in after.own):
        then, now = find_status(case_id, before), find_status(case_id, after)
        if then is None or now is None or then == now:
            continue
        row = next(row for row in after.own if row.case_id == case_id and row.status == now)
        check = row.failures[0].text if row.failures else "; ".join(row.reasons)
        changes.append(
            Regression(
                case_id=case_id,
                before=then,
                after=now,
                is_worse=then == "passed",
                is_better=now == "passed",
                check=check,
            )
        )
    return tuple(sorted(changes, key=lambda change: not change.is_worse))
