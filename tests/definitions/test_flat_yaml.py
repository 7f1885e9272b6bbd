"""The fast reader agrees with the real one wherever it says anything."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from example_counts import examples
from metier.definitions.text.front_matter import read_flat
from metier.definitions.text.yaml_text import Mapping, Scalar, read_yaml

pytestmark = pytest.mark.slow

PIECES = (
    *("name", "description", "a-b", "x", ":", ": ", " :", "::", " ", "  ", "    ", "\n", "\n\n", "\n  ", "\n  - "),
    *("\n- ", "- ", "-", "#", " #", '"', "'", "''", "\\", "|", ">", "|-", ">-", "|+", "[", "]", ", ", ",", "{", "}"),
    *("&a", "*a", "!", "!!str", "%", "@", "`", "?", "? ", "~", "null", "yes", "1.0", "2024-01-01", "word", "two words"),
    *("é", "技能", "…", "\t", "\x00", "\u2028", "\ufeff", "\U0001f600", "/", ".", "...", "---", "(", ")"),
    *("key: value\n", "key: |\n  text\n", "tags: [a, b]\n", "tags:\n  - a\n  - b\n", "metadata:\n  k: v\n"),
    "k: >\n  folded\n  text\n",
)
STARTS = ("", "  ", "    ", "- ", "  - ", "a: ", "  b: ", "c: |\n  ", "d: >\n  ")
CHARACTERS = st.characters(codec="utf-8")
VALUES = st.one_of(st.text(CHARACTERS, max_size=12), st.lists(st.sampled_from(PIECES), max_size=4).map("".join))
FIELDS = st.builds("{}: {}\n".format, st.sampled_from(("a", "b-c", "D_e", "name")), VALUES)
LINES = st.builds("{}{}\n".format, st.sampled_from(STARTS), VALUES)
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.lists(FIELDS, max_size=5).map("".join),
    st.lists(LINES, max_size=6).map("".join),
)


@settings(max_examples=examples(2000), deadline=None)
@given(TEXTS, st.integers(1, 9))
@example("a: b\n\n", 2)
@example("a: |\n  x\n\n   y\n\nb: c\n", 1)
@example("a:\n- b\nc: d\n", 1)
@example("a: [x y, 'z', \"\"]\n", 1)
def test_fast_reader_gives_exactly_what_the_real_reader_gives(text: str, first_line: int) -> None:
    flat = read_flat(text, first_line=first_line)

    if flat is not None:
        document = read_yaml(text, first_line=first_line)
        assert document.root == flat
        assert document.problems == ()


@pytest.mark.parametrize("word", ["yes", "on", "null", "~", "1.0", "0x1f", "2024-01-01", "true", "1e3", "12:30:45"])
def test_words_that_yaml_would_turn_into_something_else_stay_text(word: str) -> None:
    document = read_yaml(f"name: {word}\n")

    assert isinstance(document.root, Mapping)
    value = document.root.entries[0].value
    assert isinstance(value, Scalar)
    assert value.value == word


def test_common_front_matter_takes_the_fast_way() -> None:
    text = "name: pdf\ndescription: |\n  Fill forms.\n\n  Use it: often.\ntags: [a, b c]\nmetadata:\n  version: 1.0\n"

    assert read_flat(text) is not None
