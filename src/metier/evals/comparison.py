"""An eval in numbers: each variant by itself, and the first against the second. Pure; what reports and pages show."""

from metier.dataclass import dataclass
from metier.evals.results import EvalResult, RunRow
from metier.evals.statistics import (
    PairedDifference,
    Rate,
    Spread,
    measure_difference,
    measure_rate,
    measure_spread,
)

_DECIDED = frozenset({"passed", "failed"})
"""What says something about quality: a run that was not made, or not judged, does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    name: str
    rate: Rate
    cost_usd: Spread
    seconds: Spread
    tokens: Spread
    undecided: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSummary:
    case_id: str
    name: str
    rates: tuple[Rate, ...]
    """In the order of the variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    variants: tuple[VariantSummary, ...]
    cases: tuple[CaseSummary, ...]
    difference: PairedDifference | None = None
    cost_difference: float | None = None
    """Mean of the first less that of the second, over pairs."""
    seconds_difference: float | None = None


def compare(result: EvalResult) -> Comparison:
    names = result.variants or ("",)
    variants = tuple(_summarize(name, result) for name in names)
    ids = list(dict.fromkeys(row.case_id for row in result.rows))
    cases = tuple(_summarize_case(case_id, names, result) for case_id in ids)
    if len(names) < 2:
        return Comparison(variants=variants, cases=cases)
    pairs = _pair(result, names[0], names[1])
    count = len(pairs) or 1
    return Comparison(
        variants=variants,
        cases=cases,
        difference=measure_difference([(one.has_passed, other.has_passed) for one, other in pairs]),
        cost_difference=sum(one.cost_usd - other.cost_usd for one, other in pairs) / count,
        seconds_difference=sum(one.seconds - other.seconds for one, other in pairs) / count,
    )


def _summarize(name: str, result: EvalResult) -> VariantSummary:
    rows = [row for row in result.rows if row.variant == name]
    decided = [row for row in rows if row.status in _DECIDED]
    return VariantSummary(
        name=name,
        rate=measure_rate([row.has_passed for row in decided]),
        cost_usd=measure_spread([row.cost_usd for row in decided]),
        seconds=measure_spread([row.seconds for row in decided]),
        tokens=measure_spread([float(row.tokens) for row in decided]),
        undecided=len(rows) - len(decided),
    )


def _summarize_case(case_id: str, names: tuple[str, ...], result: EvalResult) -> CaseSummary:
    rows = [row for row in result.rows if row.case_id == case_id]
    rates = tuple(
        measure_rate([row.has_passed for row in rows if row.variant == name and row.status in _DECIDED])
        for name in names
    )
    return CaseSummary(case_id=case_id, name=rows[0].name, rates=rates)


def _pair(result: EvalResult, first: str, second: str) -> list[tuple[RunRow, RunRow]]:
    """Runs of the same case and repetition, where both were decided."""
    other = {
        (row.file, row.case_id, row.repetition): row
        for row in result.rows
        if row.variant == second and row.status in _DECIDED
    }
    return [
        (row, found)
        for row in result.rows
        if row.variant == first
        and row.status in _DECIDED
        and (found := other.get((row.file, row.case_id, row.repetition))) is not None
    ]
