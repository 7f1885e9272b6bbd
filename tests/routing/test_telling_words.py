"""What example requests of public skills teach: which words of a request tell more or less than their rarity says."""

from metier.routing.router import rank
from metier.routing.skill import RoutableSkill
from metier.routing.subjects.telling_words import FILE, FORMAT, LEAST_SKILLS, read_telling_words

PLACE = RoutableSkill(id="a", name="a", description="github")
SUBJECT = RoutableSkill(id="b", name="b", description="architecture")
OTHERS = [
    RoutableSkill(id=f"x{at}", name=f"other-{at}", description="Something else again") for at in range(LEAST_SKILLS)
]


def test_of_two_words_that_one_skill_each_has_the_more_telling_one_decides() -> None:
    best, second = rank("github architecture", [PLACE, SUBJECT, *OTHERS], 2)

    assert (best.skill_name, second.skill_name) == ("b", "a")
    assert best.score > second.score


def test_a_misspelt_word_tells_as_much_as_the_word_that_was_meant() -> None:
    best, second = rank("githubb architecure", [PLACE, SUBJECT, *OTHERS], 2)

    assert (best.skill_name, second.skill_name) == ("b", "a")


def test_in_a_small_catalog_rarity_alone_decides() -> None:
    best, second = rank("github architecture", [PLACE, SUBJECT, *OTHERS[:20]], 2)

    assert (best.skill_name, second.skill_name) == ("a", "b")


def test_the_table_holds_single_words_with_a_factor_of_at_most_four_and_no_text() -> None:
    header, *lines = FILE.read_text(encoding="utf-8").splitlines()

    assert header == f"telling words {FORMAT}"
    assert lines == sorted(lines, key=lambda line: line.split()[0])
    assert all(len(line.split(" ")) == 2 for line in lines)
    assert len(read_telling_words()) == len(lines) > 1_000
    assert all(0.25 <= factor <= 4 for factor in read_telling_words().values())
