"""Frequency of a process's checks for requests to end its runs."""

from metier.runtime.driver import MAX_POLLS_PER_SECOND, POLL_SECONDS, poll_interval


def test_a_process_with_few_runs_polls_each_twice_per_second() -> None:
    assert poll_interval(1) == poll_interval(100) == POLL_SECONDS == 0.5


def test_total_polling_rate_is_bounded_for_many_runs() -> None:
    for runs in (500, 2000, 10_000):
        assert runs / poll_interval(runs) <= MAX_POLLS_PER_SECOND
