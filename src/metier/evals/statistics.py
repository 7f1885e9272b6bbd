"""Statistics of an eval: rates with intervals per variant, and the paired difference of two variants. Pure."""

import math
import statistics
from collections.abc import Sequence

from msgspec import Struct

from metier.evals.eval_results import EvalResult, RunRow

LEVEL = 0.95
_Z = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)

_DECIDED = frozenset({"passed", "failed"})
"""Statuses that are evidence of quality."""


class Interval(Struct, frozen=True, kw_only=True):
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


class Rate(Struct, frozen=True, kw_only=True):
    """A share with its confidence interval."""

    passed: int
    total: int
    interval: Interval

    @property
    def mean(self) -> float:
        return self.passed / self.total if self.total else 0.0


class Spread(Struct, frozen=True, kw_only=True):
    """Mean and deviation of a repeated measurement."""

    mean: float
    stddev: float
    low: float
    high: float


class PairedDifference(Struct, frozen=True, kw_only=True):
    """Rate of the first variant minus that of the second."""

    mean: float
    interval: Interval
    pairs: int
    better: int
    """Number of pairs in which only the first passed."""
    worse: int

    @property
    def verdict(self) -> str:
        if self.interval.low > 0:
            return "better"
        return "worse" if self.interval.high < 0 else "no difference shown"


def measure_rate(outcomes: Sequence[bool]) -> Rate:
    passed, total = sum(outcomes), len(outcomes)
    return Rate(passed=passed, total=total, interval=get_wilson(passed, total))


# The interval is the Wilson score interval over all runs. If cases differ in difficulty, it is somewhat too wide, but
# never too narrow.
def get_wilson(passed: int, total: int) -> Interval:
    """Return Wilson's score interval; 0 to 1 without data."""
    if total == 0:
        return Interval(low=0.0, high=1.0)
    rate, squared = passed / total, _Z * _Z
    middle = (rate + squared / (2 * total)) / (1 + squared / total)
    half = _Z / (1 + squared / total) * math.sqrt(rate * (1 - rate) / total + squared / (4 * total * total))
    # Rounding errors could exceed the bounds.
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    high = 1.0 if passed == total else min(1.0, middle + half)
    return Interval(low=low, high=high)


# Taken over pairs (same case, same repetition) with the Newcombe score interval for paired proportions, so that a
# case that is hard for both variants does not count as noise.
def measure_difference(pairs: Sequence[tuple[bool, bool]]) -> PairedDifference:
    """Return Newcombe's interval for paired proportions (1998, method 10)."""
    total = len(pairs)
    if total == 0:
        return PairedDifference(mean=0.0, interval=Interval(low=-1.0, high=1.0), pairs=0, better=0, worse=0)
    both = sum(one and other for one, other in pairs)
    better = sum(one and not other for one, other in pairs)
    worse = sum(other and not one for one, other in pairs)
    neither = total - both - better - worse
    first, second = (both + better) / total, (both + worse) / total
    one, other = get_wilson(both + better, total), get_wilson(both + worse, total)
    correlation = _correlate(both, better, worse=worse, neither=neither)
    below_one, above_one = first - one.low, one.high - first
    below_other, above_other = second - other.low, other.high - second
    low = math.sqrt(max(0.0, below_one**2 - 2 * correlation * below_one * above_other + above_other**2))
    high = math.sqrt(max(0.0, above_one**2 - 2 * correlation * above_one * below_other + below_other**2))
    mean = first - second
    interval = Interval(low=max(-1.0, mean - low), high=min(1.0, mean + high))
    return PairedDifference(mean=mean, interval=interval, pairs=total, better=better, worse=worse)


def _correlate(both: int, better: int, *, worse: int, neither: int) -> float:
    """Return Newcombe's estimate of the correlation, corrected for small numbers."""
    product = (both + better) * (worse + neither) * (both + worse) * (better + neither)
    if product == 0:
        return 0.0
    total = both + better + worse + neither
    cross = both * neither - better * worse
    if cross > 0:
        cross = max(cross - total / 2, 0)
    return cross / math.sqrt(product)


def measure_spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(mean=0.0, stddev=0.0, low=0.0, high=0.0)
    stddev = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=statistics.fmean(values), stddev=stddev, low=min(values), high=max(values))


class VariantSummary(Struct, frozen=True, kw_only=True):
    name: str
    rate: Rate
    cost_usd: Spread
    seconds: Spread
    tokens: Spread
    undecided: int


class CaseSummary(Struct, frozen=True, kw_only=True):
    case_id: str
    name: str
    rates: tuple[Rate, ...]
    """Rates in the order of the variants."""


class Comparison(Struct, frozen=True, kw_only=True):
    variants: tuple[VariantSummary, ...]
    cases: tuple[CaseSummary, ...]
    difference: PairedDifference | None = None
    cost_difference: float | None = None
    """Mean cost of the first minus that of the second, over pairs."""
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
    """Pair runs of the same case and repetition if both were decided."""
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
