"""What public skills teach about words: subjects and how common a word is."""

from itertools import pairwise
from pathlib import Path

import pytest

from metier.routing.cache import load_index, save_index
from metier.routing.router import build_index, rank
from metier.routing.skill import RoutableSkill
from metier.routing.subjects.public_words import read_public_words
from metier.routing.subjects.topics import FULL_SKILLS, MOST_SKILLS, find_impact

DATABASE = RoutableSkill(id="tuning", name="tuning", description="Slow queries: indexes, joins, vacuum and SQL")
KITCHEN = RoutableSkill(id="timing", name="timing", description="Slow kitchens: schedules for cooking a dinner")
OTHERS = [RoutableSkill(id=f"x{at}", name=f"other-{at}", description="Something else again") for at in range(12)]


def test_of_two_skills_with_the_same_word_the_one_on_the_subject_of_the_request_is_first() -> None:
    (best, *_) = rank("postgres is slow", [KITCHEN, DATABASE, *OTHERS], 3)

    assert best.skill_name == "tuning"
    assert [match.word for match in best.matched] == ["slow"]


def test_a_subject_without_a_common_word_brings_no_skill_in() -> None:
    assert rank("postgres", [KITCHEN, DATABASE, *OTHERS], 3) == []


def test_a_subject_changes_the_order_and_no_score() -> None:
    on_subject = {each.skill_name: each.score for each in rank("postgres is slow", [KITCHEN, DATABASE, *OTHERS], 3)}
    without = {each.skill_name: each.score for each in rank("zzz is slow", [KITCHEN, DATABASE, *OTHERS], 3)}

    assert on_subject == pytest.approx(without)


def test_the_larger_a_catalog_the_less_a_subject_counts() -> None:
    impacts = [find_impact(size) for size in (1, FULL_SKILLS, FULL_SKILLS + 500, MOST_SKILLS, 100_000)]

    assert all(first >= second for first, second in pairwise(impacts))
    assert (impacts[0], impacts[-2], impacts[-1]) == (impacts[1], 0, 0)


def test_a_kept_index_has_the_same_subjects(tmp_path: Path) -> None:
    index = build_index([KITCHEN, DATABASE, *OTHERS])
    save_index(tmp_path, "f1", index)
    loaded = load_index(tmp_path, "f1")

    assert loaded is not None
    assert loaded.rank("postgres is slow", 8) == index.rank("postgres is slow", 8)


def test_numbers_of_many_words_add_up_without_running_into_each_other() -> None:
    words = read_public_words()
    one = words.read(words.find_lanes("invoic"), 1)

    assert words.read(100_000 * words.find_lanes("invoic"), 100_000) == [100_000 * number for number in one]
    assert words.find_lanes("no-such-word") == 0
