"""Intervals have their nominal coverage: simulated models with known success rates, 2,000 times each."""

import random
from functools import cache

import pytest

from metier.evals.eval_results import EvalResult, RunRow
from metier.evals.live_evals import EvalBudget
from metier.evals.statistics import compare, get_wilson, measure_difference

SIMULATIONS = 2_000
SETTINGS = {
    "easy and alike": ([0.9] * 10, [0.7] * 10, 5),
    "even and alike": ([0.5] * 12, [0.5] * 12, 4),
    "easy and hard cases": ([0.95, 0.9, 0.5, 0.2, 0.1] * 2, [0.9, 0.8, 0.3, 0.1, 0.05] * 2, 5),
    "nearly always": ([0.97] * 20, [0.9] * 20, 3),
    "one run of many cases": ([0.8, 0.4] * 20, [0.6, 0.3] * 20, 1),
}


def simulate(rates: dict[str, list[float]], repeat: int, chance: random.Random) -> EvalResult:
    rows = tuple(
        build_row(number, name, repetition, has_passed=chance.random() < rate)
        for name, listed in rates.items()
        for number, rate in enumerate(listed)
        for repetition in range(repeat)
    )
    result = EvalResult(id="x", target="skill:x", mode="live", started_at="", repeat=repeat, variants=tuple(rates))
    return result.model_copy(update={"rows": rows})


@cache
def build_row(number: int, variant: str, repetition: int, *, has_passed: bool) -> RunRow:
    status = "passed" if has_passed else "failed"
    return RunRow(case_id=str(number), variant=variant, repetition=repetition, status=status)


@pytest.mark.parametrize("setting", SETTINGS)
def test_intervals_have_their_nominal_coverage(setting: str) -> None:
    first, second, repeat = SETTINGS[setting]
    chance = random.Random(setting)
    true_rate = sum(first) / len(first)
    true_difference = true_rate - sum(second) / len(second)
    held = {"rate": 0, "difference": 0}

    for _ in range(SIMULATIONS):
        found = compare(simulate({"now": first, "before": second}, repeat, chance))
        held["rate"] += found.variants[0].rate.interval.holds(true_rate)
        assert found.difference is not None
        held["difference"] += found.difference.interval.holds(true_difference)

    coverage = {name: count / SIMULATIONS for name, count in held.items()}
    # Three standard errors below 95 % at 2,000 simulations; cases that differ in difficulty make them wider.
    assert min(coverage.values()) >= 0.935, coverage
    if "alike" in setting:
        assert max(coverage.values()) <= 0.975, coverage


def test_a_real_difference_is_found_and_no_false_one_is_reported() -> None:
    better = measure_difference([(True, False)] * 12 + [(True, True)] * 8)
    same = measure_difference([(True, True)] * 10 + [(False, False)] * 10)
    few = measure_difference([(True, False), (True, True)])

    assert (better.verdict, same.verdict, few.verdict) == ("better", "no difference shown", "no difference shown")
    assert measure_difference([(other, one) for one, other in [(True, False)] * 12]).verdict == "worse"


def test_rates_of_zero_and_one_have_an_interval() -> None:
    assert get_wilson(0, 0).low == 0
    assert get_wilson(0, 0).high == 1
    assert get_wilson(10, 10).high == 1
    assert 0.68 < get_wilson(10, 10).low < 0.73


def test_concurrent_runs_do_not_reserve_more_than_the_limit() -> None:
    budget = EvalBudget(limit_usd=1.0, jobs=4)

    shares = [budget.reserve(remaining=10) or 0 for _ in range(4)]
    assert sum(shares) <= 1.0
    for share in shares:
        budget.settle(share, spent_usd=share)
    budget.spent_usd = 1.0
    assert budget.reserve(remaining=6) == 0.0
    assert budget.is_used_up
