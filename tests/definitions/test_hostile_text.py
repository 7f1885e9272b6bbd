"""Reading arbitrary bytes ends soon, raises nothing, and reports problems with lines."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skill_files import codes

from example_counts import examples
from metier.definitions.skills.skill import parse_skill
from metier.definitions.text.front_matter import read_front_matter
from metier.definitions.text.headings import parse_sections, walk_sections
from metier.definitions.text.yaml_text import Mapping, plain_value, read_yaml

FILE = Path("skills/x/SKILL.md")
PIECES = (
    *(b"---", b"---\n", b"\n", b"\r\n", b"\r", b"name: x\n", b"description: d\n", b"...", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b"\x00", b"\x1b[31m", b"\xe9", b"\xed\xa0\x80", b"\t", b"  ", b"- ", b": ", b"#", b" #", b"&a ", b"*a", b"<<: "),
    *(b"!!python/object/apply:os.system ", b"!<x> ", b"{", b"}", b"[", b"]", b"'", b'"', b"|\n", b">-\n", b"? "),
    *(b"%YAML", b"metadata:\n", b"allowed-tools:\n", b"entrypoint: 'x\n", b"permissions:\n", b"tools: {a: b}\n"),
    *(b"```\n", b"# H\n"),
)


@settings(max_examples=examples(1500), deadline=None)
@given(st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join)), st.booleans())
def test_random_bytes_do_not_raise(data: bytes, strict: bool) -> None:
    reading = parse_skill(data, file=FILE, strict=strict)

    assert all(problem.line is not None and problem.line >= 1 for problem in reading.problems)
    assert (reading.skill is None) == any(problem.severity == "error" for problem in reading.problems)
    assert strict or reading.skill is None or reading.skill.description


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=200).map(lambda data: b"---\n" + data + b"\n---\nBody"))
def test_line_numbers_are_within_the_file(data: bytes) -> None:
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1

    problems = parse_skill(data, file=FILE).problems

    assert all(1 <= (problem.line or 0) <= lines + 1 for problem in problems)


@settings(max_examples=examples(500), deadline=None)
@given(st.text(max_size=300))
def test_sections_of_random_text_are_within_the_text(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))

    for section in walk_sections(parse_sections(text)):
        assert 0 <= section.start < section.end <= len(text)
        assert 0 <= section.start_byte < section.end_byte <= size
        assert section.line <= section.end_line


BOMBS = {
    "billion laughs": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
    "alias to itself": "a: &a [*a, *a]\n",
    "alias to its mapping": "a: &a\n  b: *a\n",
    "merge keys": "a: &a {k: v}\nb:\n  <<: [*a, *a]\n",
    "deep flow": "a: " + "[" * 5000 + "\n",
    "deep closed flow": "a: " + "[" * 5000 + "]" * 5000 + "\n",
    "deep blocks": "".join("  " * i + "a:\n" for i in range(180)),
    "many keys": "".join(f"k{i}: v\n" for i in range(9000)),
    "many broken keys": "".join(f"k{i}: [\n" for i in range(5000)),
    "long key": "k" * 60_000 + ": v\n",
    "many quotes": '"' * 60_000 + "\n",
    "many colons": ": " * 30_000 + "\n",
    "many dashes": "- " * 30_000 + "\n",
    "many questions": "? " * 20_000 + "\n",
    "hash run": "a: b" + "#" * 60_000 + ":\n",
    "tags": "a: !!python/object/apply:os.system ['true']\n",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_yaml_bomb_is_handled_cheaply(bomb: str) -> None:
    started = time.process_time()

    document = read_yaml(bomb)
    for strict in (True, False):
        parse_skill(f"---\nname: x\ndescription: d\n{bomb}---\n".encode(), file=FILE, strict=strict)

    assert time.process_time() - started < 30
    if isinstance(document.root, Mapping):
        assert len(repr(plain_value(document.root))) < 2_000_000


def test_tags_construct_nothing() -> None:
    document = read_yaml("a: !!python/object/apply:os.system ['echo x']\nb: !!int '3'\n")

    assert isinstance(document.root, Mapping)
    assert plain_value(document.root) == {"a": ["echo x"], "b": "3"}


def test_merge_keys_are_plain_keys() -> None:
    document = read_yaml("a: &a {k: v}\nb:\n  <<: *a\n")

    assert isinstance(document.root, Mapping)
    assert plain_value(document.root) == {"a": {"k": "v"}, "b": {"<<": {"k": "v"}}}


def test_a_large_body_is_read_and_sectioned_in_linear_time() -> None:
    body = "# H\n\ntext *a* [b](c) `d`\n\n```\n# no\n```\n" * 20_000
    data = f"---\nname: x\ndescription: d\n---\n{body}".encode()
    started = time.process_time()

    front = read_front_matter(data)
    sections = parse_sections(front.body)

    assert len(sections) == 20_000
    assert time.process_time() - started < 60


def test_exceeded_limits_are_given_as_the_reason() -> None:
    data = b"---\nname: x\ndescription: d\nk: " + b"[" * 30 + b"]" * 30 + b"\n---\n"

    assert codes(parse_skill(data, file=FILE).problems) == {"yaml_too_deep"}


@pytest.mark.parametrize("text", ["{ ?foo: bar }\n", "[?x]\n", "{?: b}\n"])
def test_a_question_mark_in_a_key_is_kept(text: str) -> None:
    document = read_yaml(text)

    assert document.root is None
    assert [problem.severity for problem in document.problems] == ["error"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("a: |\n  x\n   ", "x\n \n"), ("a: |\n  x", "x"), ("a: |\n  x\n", "x\n"), ("? a\n: x\n", "x"), ("a: ?x\n", "?x")],
)
def test_the_end_of_a_text_follows_yaml_rules(text: str, value: str) -> None:
    document = read_yaml(text)

    assert document.root is not None
    assert plain_value(document.root) == {"a": value}
