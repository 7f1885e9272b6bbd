"""The score threshold, and the fallback without candidates."""

import pytest

from metier.errors import NoSkillMatches
from metier.routing.prefilter import prefilter
from metier.routing.ranking import RoutingIndex, build_index
from metier.routing.skill import RoutableSkill


@pytest.fixture
def index(twelve: tuple[RoutableSkill, ...]) -> RoutingIndex:
    return build_index(twelve)


def skill(name: str, description: str = "", *, tags: tuple[str, ...] = (), body: str = "") -> RoutableSkill:
    return RoutableSkill(id=name, name=name, description=description, tags=tags, body=body)


@pytest.mark.parametrize("noise", ["hello", "what time is it", "thanks, good job!", "yes please go on", "👍"])
def test_noise_has_no_candidates_so_the_fallback_returns_every_skill(
    twelve: tuple[RoutableSkill, ...], index: RoutingIndex, noise: str
) -> None:
    found = prefilter(index, noise)

    assert found.fell_back
    assert sorted(candidate.skill_id for candidate in found.candidates) == sorted(skill.id for skill in twelve)


def test_fail_fast_stops_if_no_skill_reaches_the_score(index: RoutingIndex) -> None:
    with pytest.raises(NoSkillMatches, match="None of 12 skills reaches the score 55") as caught:
        prefilter(index, "hello", strategy="fail_fast")

    assert "prefilter_min_score" in caught.value.hint


def test_fail_fast_does_not_stop_a_request_with_a_match(index: RoutingIndex) -> None:
    found = prefilter(index, "forecast the rain in this city", strategy="fail_fast")

    assert found.candidates[0].skill_name == "weather"
    assert not found.fell_back


@pytest.mark.parametrize("request_text", ["review the release notes and the query plan", "the tables of the city"])
def test_the_minimum_score_applies_to_the_best_candidate_only(index: RoutingIndex, request_text: str) -> None:
    everything = prefilter(index, request_text, min_score=0).candidates
    best = max(candidate.score for candidate in everything)

    kept = prefilter(index, request_text, min_score=best)
    none = prefilter(index, request_text, min_score=best + 0.1)

    assert len(everything) > 1
    assert kept.candidates == everything
    assert not kept.fell_back
    assert none.fell_back
    assert none.candidates[: len(everything)] == everything


def test_a_skill_without_a_significant_word_of_the_request_is_not_a_candidate(index: RoutingIndex) -> None:
    found = prefilter(index, "resize the banner and a picture of it in the city", min_score=0)

    assert {candidate.skill_name for candidate in found.candidates} == {"image", "weather"}


def test_a_named_skill_passes_the_highest_threshold(index: RoutingIndex) -> None:
    found = prefilter(index, "/weather", min_score=100, strategy="fail_fast")

    assert [candidate.skill_name for candidate in found.candidates] == ["weather"]


def test_a_small_catalog_has_candidates_like_a_large_one(twelve: tuple[RoutableSkill, ...]) -> None:
    small = build_index(twelve[:8])

    found = prefilter(small, "forecast the rain in this city", strategy="fail_fast")
    nothing = prefilter(small, "hello")

    assert [candidate.skill_name for candidate in found.candidates] == ["weather"]
    assert nothing.fell_back
    assert len(nothing.candidates) == 8
    with pytest.raises(NoSkillMatches):
        prefilter(small, "hello", strategy="fail_fast")


def test_words_shared_by_every_skill_of_a_small_catalog_count_as_evidence() -> None:
    index = build_index(skill(f"pdf-{verb}", f"{verb} pages of a pdf file") for verb in "abcdefghijkl")

    found = prefilter(index, "pages of my pdf file", strategy="fail_fast")

    assert len(found.candidates) == 8


def test_scores_stay_between_zero_and_a_hundred_and_skills_without_one_are_last(index: RoutingIndex) -> None:
    for request in ("pdf", "review deploy translate weather image", "the a of", "/image weather"):
        scores = [candidate.score for candidate in index.rank(request, 12)]
        assert all(0 <= score <= 100 for score in scores)
        assert [score > 0 for score in scores] == sorted([score > 0 for score in scores], reverse=True)
