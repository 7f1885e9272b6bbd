"""How often a process looks for requests to end its runs."""

from metier.runtime.runs import LOOK_SECONDS, MOST_LOOKS, find_pause


def test_a_process_with_few_runs_looks_twice_a_second_for_each() -> None:
    assert find_pause(1) == find_pause(100) == LOOK_SECONDS == 0.5


def test_a_process_with_many_runs_looks_no_oftener_in_a_second_for_all_of_them_together() -> None:
    for runs in (500, 2000, 10_000):
        assert runs / find_pause(runs) <= MOST_LOOKS
