"""Versions and clauses mean what they mean to `packaging`, which the base install does without."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from metier.definitions.releases import BadVersion, is_allowed, parse_release

ENDINGS = ["", "a1", "b2", "rc1", ".dev0", ".post1", "a1.dev2", "rc2.post1", ".post0.dev1", "-1", "c3"]
SIGNS = ["==", "!=", "<=", ">=", "<", ">"]
OTHER_CLAUSES = st.sampled_from(["==3.*", "!=1.2.*", "~=1.2", "~=2.0.1", "== 3", "~=1.0rc1"])


@st.composite
def versions(draw: st.DrawFn) -> str:
    numbers = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    return ".".join(map(str, numbers)) + draw(st.sampled_from(ENDINGS))


@st.composite
def clauses(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(SIGNS)) + draw(versions())


@given(versions(), versions())
def test_releases_are_ordered_as_the_library_orders_them(one: str, other: str) -> None:
    known, own = (Version(one), Version(other)), (parse_release(one).rank, parse_release(other).rank)

    assert (own[0] < own[1], own[0] == own[1]) == (known[0] < known[1], known[0] == known[1])


@given(versions(), st.lists(clauses() | OTHER_CLAUSES, max_size=3))
def test_clauses_allow_what_the_library_allows(version: str, wanted: list[str]) -> None:
    text = ",".join(wanted)

    assert is_allowed(version, text) == SpecifierSet(text).contains(version, prereleases=True)


@pytest.mark.parametrize("text", ["", "x", "1..2", "1.2-", "1.2+", "one", "1.2.x", "1,2"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(BadVersion):
        parse_release(text)


@pytest.mark.parametrize("text", [">=", "3.11", ">3.*", "~=3", "=>3", ">=3.11;<4", ">=three"])
def test_what_is_no_list_of_clauses_is_refused(text: str) -> None:
    with pytest.raises(BadVersion):
        is_allowed("3.12.1", text)
