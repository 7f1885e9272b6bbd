"""What quick runs of the tests leave out."""

from pathlib import Path

from suite_costs import SLOW_FILES, SLOW_ROOMS, is_slow_file

TESTS = Path(__file__).resolve().parents[1]


def test_every_file_that_quick_runs_leave_out_exists() -> None:
    missing = [name for name in SLOW_FILES if not (TESTS / name).is_file()]
    missing += [name for name in SLOW_ROOMS if not (TESTS / name).is_dir()]

    assert missing == []


def test_quick_runs_have_most_of_the_files() -> None:
    files = [file.relative_to(TESTS.parent).as_posix() for file in TESTS.glob("*/test_*.py")]

    assert sum(not is_slow_file(file) for file in files) > len(files) / 2
