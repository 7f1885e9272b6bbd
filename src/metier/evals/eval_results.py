"""Results of an eval as values: per run, per case, and in total. Stored as JSON, shown by reports and pages."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from metier.evals.evidence import Evidence
from metier.evals.grading import Grade
from metier.values import Value

type Mode = Literal["replay", "record", "live"]
type Status = Literal["passed", "failed", "not_checked", "stale", "missing", "error", "not_run"]
"""`stale`: the recording is of an older version. `missing`: there is no recording. `error`: the provider failed.
`not_run`: the budget was used up.
"""


class GradeRow(Value):
    """The result of one check."""

    check: str
    text: str
    verdict: Literal["passed", "failed", "not_checked"]
    evidence: str = ""


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
    """Why the run is stale, missing or in error."""
    grades: tuple[GradeRow, ...] = ()
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
    def failures(self) -> tuple[GradeRow, ...]:
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
    """The first is compared with the threshold, the second is its baseline."""
    rows: tuple[RunRow, ...] = ()
    budget_used_up: bool = False
    suggested_words: tuple[str, ...] = ()
    """For the skill's description, if requested."""

    @property
    def own(self) -> tuple[RunRow, ...]:
        """Runs of the target itself."""
        return tuple(row for row in self.rows if not self.variants or row.variant == self.variants[0])

    @property
    def share(self) -> float:
        """Share of the runs that passed. A run that was not checked did not pass."""
        return sum(row.has_passed for row in self.own) / len(self.own) if self.own else 0.0

    @property
    def cost_usd(self) -> float:
        return sum(row.cost_usd + row.judge_cost_usd for row in self.rows)

    def count(self, status: Status) -> int:
        return sum(row.status == status for row in self.own)


def judge_grades(grades: Sequence[Grade]) -> Status:
    """Return failed after one failed check, else passed after one that held, else not checked."""
    verdicts = {grade.verdict for grade in grades}
    if "failed" in verdicts:
        return "failed"
    return "passed" if "passed" in verdicts else "not_checked"


def build_row(row: RunRow, evidence: Evidence, grades: Sequence[Grade]) -> RunRow:
    """Return the row with the run's outcome; an existing status such as `stale` stays."""
    counts: dict[str, int] = {}
    for call in evidence.calls:
        counts[call.tool] = counts.get(call.tool, 0) + 1
    return row.model_copy(
        update={
            "grades": tuple(
                GradeRow(check=each.check, text=each.text, verdict=each.verdict, evidence=each.evidence)
                for each in grades
            ),
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
