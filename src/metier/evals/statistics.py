"""Rates with intervals, and differences between two variants paired by case. Pure.

The rate is that of these cases: what further runs of the same cases would give. Its interval is Wilson's score interval
over all runs; where cases differ in difficulty it is somewhat wider than need be, never narrower. A difference is taken
over pairs (same case, same repetition) with Newcombe's score interval for paired proportions, so that what makes a case
hard for both does not count as noise.
"""

import math
import statistics
from collections.abc import Sequence

from metier.dataclass import dataclass

LEVEL = 0.95
_Z = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How often something held."""

    passed: int
    total: int
    interval: Interval

    @property
    def mean(self) -> float:
        return self.passed / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A number that was measured more than once."""

    mean: float
    stddev: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The rate of the first less that of the second."""

    mean: float
    interval: Interval
    pairs: int
    better: int
    """Pairs in which only the first held."""
    worse: int

    @property
    def verdict(self) -> str:
        if self.interval.low > 0:
            return "better"
        return "worse" if self.interval.high < 0 else "no difference shown"


def measure_rate(outcomes: Sequence[bool]) -> Rate:
    passed, total = sum(outcomes), len(outcomes)
    return Rate(passed=passed, total=total, interval=find_wilson(passed, total))


def find_wilson(passed: int, total: int) -> Interval:
    """Wilson's score interval; all of it where nothing was measured."""
    if total == 0:
        return Interval(low=0.0, high=1.0)
    rate, squared = passed / total, _Z * _Z
    middle = (rate + squared / (2 * total)) / (1 + squared / total)
    half = _Z / (1 + squared / total) * math.sqrt(rate * (1 - rate) / total + squared / (4 * total * total))
    # At the ends the formula gives the end itself, up to rounding.
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    high = 1.0 if passed == total else min(1.0, middle + half)
    return Interval(low=low, high=high)


def measure_difference(pairs: Sequence[tuple[bool, bool]]) -> PairedDifference:
    """Newcombe 1998, method 10: score limits of both rates, joined with the correlation within pairs."""
    total = len(pairs)
    if total == 0:
        return PairedDifference(mean=0.0, interval=Interval(low=-1.0, high=1.0), pairs=0, better=0, worse=0)
    both = sum(one and other for one, other in pairs)
    better = sum(one and not other for one, other in pairs)
    worse = sum(other and not one for one, other in pairs)
    neither = total - both - better - worse
    first, second = (both + better) / total, (both + worse) / total
    one, other = find_wilson(both + better, total), find_wilson(both + worse, total)
    correlation = _correlate(both, better, worse=worse, neither=neither)
    below_one, above_one = first - one.low, one.high - first
    below_other, above_other = second - other.low, other.high - second
    low = math.sqrt(max(0.0, below_one**2 - 2 * correlation * below_one * above_other + above_other**2))
    high = math.sqrt(max(0.0, above_one**2 - 2 * correlation * above_one * below_other + below_other**2))
    mean = first - second
    interval = Interval(low=max(-1.0, mean - low), high=min(1.0, mean + high))
    return PairedDifference(mean=mean, interval=interval, pairs=total, better=better, worse=worse)


def _correlate(both: int, better: int, *, worse: int, neither: int) -> float:
    """Newcombe's estimate of the correlation, with his correction for small numbers."""
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
