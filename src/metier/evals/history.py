"""Eval results over time: stored in the runs folder, and combined for the console page. `build_page` is pure."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from pydantic import ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.evals.eval_results import EvalResult, RunRow, Status
from metier.evals.live_evals import FOLDER, RESULT
from metier.runtime.records.run_folders import prepare_runs_folder

MAX_SHOWN = 20


def save_result(runs: Path, result: EvalResult) -> Path:
    """Store a result. Raises `OSError`."""
    prepare_runs_folder(runs)
    file = runs / FOLDER / result.id / RESULT
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, result.model_dump_json(indent=1).encode() + b"\n")
    return file


def load_results(runs: Path, *, target: str = "") -> list[EvalResult]:
    """Load results, oldest first, without unreadable ones."""
    found: list[EvalResult] = []
    for file in (runs / FOLDER).glob(f"*/{RESULT}"):
        try:
            result = EvalResult.model_validate_json(file.read_bytes())
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
    """The case passes now. A case that failed and is stale has not improved: it was not checked."""
    check: str
    """The first failing check, or why the case is stale."""


class TargetPage(Struct, frozen=True, kw_only=True):
    target: str
    points: tuple[Point, ...]
    """Points, oldest first."""
    cases: tuple[CaseLine, ...]
    before: Point | None
    """The baseline: the newest eval of another commit, or the previous eval without commits."""
    changes: tuple[Regression, ...]
    """Changes, regressions first."""


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
