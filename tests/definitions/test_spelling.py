"""Spellings are compared as `rapidfuzz` compares them, which the base install does without."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz
from rapidfuzz.distance import OSA, Prefix

from metier.definitions.spelling import (
    measure_beginning,
    measure_common,
    measure_name,
    measure_part,
    measure_typing,
    rank,
)

WORDS = st.text(alphabet="abcd-", max_size=70) | st.text(max_size=12)


@given(WORDS, WORDS)
def test_measures_are_those_of_the_library(one: str, other: str) -> None:
    assert measure_common(one, other) == pytest.approx(fuzz.ratio(one, other) / 100)
    assert measure_typing(one, other) == pytest.approx(OSA.normalized_similarity(one, other))
    assert measure_beginning(one, other) == pytest.approx(Prefix.normalized_similarity(one, other))


@given(st.text(alphabet="abcd", max_size=20), st.text(alphabet="abcd", max_size=40))
def test_a_part_counts_as_in_the_library(one: str, other: str) -> None:
    assert measure_part(one, other) == pytest.approx(fuzz.partial_ratio(one, other) / 100)


@given(st.text(alphabet="abc_", min_size=1, max_size=12), st.text(alphabet="abc_", min_size=1, max_size=60))
def test_names_are_measured_as_the_library_weighs_them(one: str, other: str) -> None:
    assert measure_name(one, other) == pytest.approx(fuzz.WRatio(one, other) / 100)


def test_the_most_alike_come_first_and_of_equals_the_first() -> None:
    found = rank("reed", ["write", "reads", "read", "red", "rede"], measure_common, at_least=0.5, most=3)

    assert [each.text for each in found] == ["red", "read", "rede"]
    assert [each.place for each in found] == [3, 2, 4]
    assert [each.text for each in rank("x", ["a", "b"], measure_common, at_least=0.0, most=1)] == ["a"]
