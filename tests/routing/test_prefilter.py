"""The cut, and what happens when nothing is left."""

from itertools import pairwise

import pytest

from metier.errors import NoSkillMatches
from metier.routing.prefilter import prefilter
from metier.routing.router import RoutingIndex, build_index
from metier.routing.skill import RoutableSkill


@pytest.fixture
def index(twelve: tuple[RoutableSkill, ...]) -> RoutingIndex:
    return build_index(twelve)


def skill(name: str, description: str = "", *, tags: tuple[str, ...] = (), body: str = "") -> RoutableSkill:
    return RoutableSkill(id=name, name=name, description=description, tags=tags, body=body)


@pytest.mark.parametrize("noise", ["hello", "what time is it", "thanks, good job!", "yes please go on", "👍"])
def test_noise_has_no_candidate_so_the_fallback_gives_every_skill(
    twelve: tuple[RoutableSkill, ...], index: RoutingIndex, noise: str
) -> None:
    found = prefilter(index, noise)

    assert found.fell_back
    assert sorted(candidate.skill_id for candidate in found.candidates) == sorted(skill.id for skill in twelve)


def test_fail_fast_stops_where_nothing_reaches_the_score(index: RoutingIndex) -> None:
    with pytest.raises(NoSkillMatches, match="None of 12 skills reaches the score 55") as caught:
        prefilter(index, "hello", strategy="fail_fast")

    assert "prefilter_min_score" in caught.value.hint


def test_fail_fast_does_not_stop_a_request_with_an_answer(index: RoutingIndex) -> None:
    found = prefilter(index, "forecast the rain in this city", strategy="fail_fast")

    assert found.candidates[0].skill_name == "weather"
    assert not found.fell_back


def test_the_default_cut_keeps_the_answer_and_drops_what_shares_a_stray_word(index: RoutingIndex) -> None:
    request = "extract the tables from scanned pdf invoices and files of the city"
    everything = prefilter(index, request, min_score=0)
    cut = prefilter(index, request)

    assert [candidate.skill_name for candidate in cut.candidates] == ["pdf-tables"]
    assert len(everything.candidates) > 1
    assert everything.considered == cut.considered == 12


def test_a_higher_score_keeps_fewer_candidates_in_the_same_order(index: RoutingIndex) -> None:
    request = "review the release notes and the query plan"
    sizes = [prefilter(index, request, min_score=score).candidates for score in (0, 30, 55, 80)]

    names = [[candidate.skill_name for candidate in candidates] for candidates in sizes]
    assert all(shorter == longer[: len(shorter)] for longer, shorter in pairwise(names))
    assert len(names[0]) > len(names[-1]) > 0


def test_a_named_skill_passes_the_highest_cut(index: RoutingIndex) -> None:
    found = prefilter(index, "/weather", min_score=100, strategy="fail_fast")

    assert [candidate.skill_name for candidate in found.candidates] == ["weather"]


def test_a_small_catalog_is_cut_like_a_large_one(twelve: tuple[RoutableSkill, ...]) -> None:
    small = build_index(twelve[:8])

    found = prefilter(small, "forecast the rain in this city", strategy="fail_fast")
    nothing = prefilter(small, "hello")

    assert [candidate.skill_name for candidate in found.candidates] == ["weather"]
    assert nothing.fell_back
    assert len(nothing.candidates) == 8
    with pytest.raises(NoSkillMatches):
        prefilter(small, "hello", strategy="fail_fast")


def test_words_that_every_skill_of_a_small_catalog_has_still_count_as_evidence() -> None:
    index = build_index(skill(f"pdf-{verb}", f"{verb} pages of a pdf file") for verb in "abcdefghijkl")

    found = prefilter(index, "pages of my pdf file", strategy="fail_fast")

    assert len(found.candidates) == 8


def test_scores_stay_between_zero_and_a_hundred_and_fall(index: RoutingIndex) -> None:
    for request in ("pdf", "review deploy translate weather image", "the a of", "/image weather"):
        scores = [candidate.score for candidate in index.rank(request, 12)]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 100 for score in scores)
