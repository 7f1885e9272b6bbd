"""Frequency of a process's checks for requests to end its runs."""

from metier.runtime.driver import MAX_POLLS_PER_SECOND, POLL_SECONDS, poll_interval


def test_a_process_with_few_runs_looks_twice_a_second_for_each() -> None:
    assert poll_interval(1) == poll_interval(100) == POLL_SECONDS == 0.5


def test_a_process_with_many_runs_looks_no_oftener_in_a_second_for_all_of_them_together() -> None:
    for runs in (500, 2000, 10_000):
        assert runs / poll_interval(runs) <= MAX_POLLS_PER_SECOND
