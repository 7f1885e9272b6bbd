"""An index equals a plain word count, however it was built."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metier.routing.index import (
    BODY_IMPACT,
    BODY_LENGTH_WEIGHT,
    BODY_ONLY_SHARE,
    META_LENGTH_WEIGHT,
    NAME_IMPACT,
    NAME_LENGTH_WEIGHT,
    RARITY_POWER,
    SATURATION,
    TRIGGER_SHARE,
    IndexTables,
    build_ordered_tables,
    encode_pair,
    get_rarity,
    get_trigger_clauses,
    remove_exclusions,
)
from metier.routing.skill import BODY, DESCRIPTION, NAME, TAGS, RoutableSkill
from metier.routing.words import FUNCTION_WORDS, split_into_segments, split_segments, split_tokens, split_words, stem

LISTED = (
    "table tables Tables parse parseJson HTMLPage c++ C# c#_ the of and PDF pdf's naïve Straße 表格 проверка ﬁle ① ½ ™ "
    "e\u0301t\u0301e\u0301 ⚠\ufe0f ＋ a＋＋ — – … “quoted” • 10 x+y # . , ; (in) \u00a0 \n don't"
)
PIECES = LISTED.split(" ")
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join) | st.lists(st.sampled_from(PIECES)).map("".join)
SKILLS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), min_size=1, max_size=6)


class Plain:
    """The words of one skill, split and counted naively."""

    def __init__(self, skill: RoutableSkill) -> None:
        self.name = [stem(word) for word in split_words(skill.name)]
        description = remove_exclusions(skill.description)
        self.description = [stem(word) for word in split_words(description)]
        self.tags = [stem(word) for tag in skill.tags for word in split_words(tag)]
        self.triggers = Counter([stem(word) for word in split_words(get_trigger_clauses(description))])
        words = [word for token in split_tokens(skill.body) for word in split_words(token)]
        self.body = Counter([stem(word) for word in words if word not in FUNCTION_WORDS])
        texts = [segment for text in (skill.name, description, *skill.tags) for segment in split_segments(text)]
        self.pairs = {pair for segment in texts for pair in pairwise(map(stem, segment))}
        self.told = Counter([*self.name, *self.description, *self.tags])

    def find_fields(self, word: str) -> int:
        held = {NAME: self.name, DESCRIPTION: self.description, TAGS: self.tags, BODY: self.body}
        return sum(bit for bit, words in held.items() if word in words)


def drag(length: int, lengths: Sequence[int], weight: float) -> float:
    mean = sum(lengths) / len(lengths)
    return SATURATION * (1 - weight + weight * length / mean) if mean else SATURATION


def saturate(times: float, drag: float) -> float:
    return times * (SATURATION + 1) / (times + drag)


def weigh(plain: Sequence[Plain], each: Plain, word: str) -> float:
    """Return the weight of one word for one skill."""
    told, named, body = each.told[word], each.name.count(word), each.body[word]
    body_drag = drag(each.body.total(), [other.body.total() for other in plain], BODY_LENGTH_WEIGHT)
    told_drag = drag(each.told.total(), [other.told.total() for other in plain], META_LENGTH_WEIGHT)
    name_drag = drag(len(each.name), [len(other.name) for other in plain], NAME_LENGTH_WEIGHT)
    total = BODY_IMPACT * saturate(body, body_drag) if body else 0.0
    total += saturate(told + TRIGGER_SHARE * each.triggers[word], told_drag) if told else 0.0
    return total + (NAME_IMPACT * saturate(named, name_drag) if named else 0.0)


@given(texts=SKILLS)
def test_an_index_matches_a_plain_word_count(texts: list[tuple[str, str, str, str]]) -> None:
    skills = [
        RoutableSkill(id=str(number), name=name, description=f"{description} Use when {tag}", tags=(tag, "pdf"), body=b)
        for number, (name, description, tag, b) in enumerate(texts)
    ]
    plain = [Plain(skill) for skill in skills]

    tables = build_ordered_tables(skills)

    assert set(tables.words) == {word for each in plain for word in (*each.told, *each.body)}
    for word, key in tables.words.items():
        chosen = slice(tables.postings.starts[key], tables.postings.starts[key + 1])
        having = [number for number, each in enumerate(plain) if word in each.told or word in each.body]
        fields = [plain[number].find_fields(word) for number in having]
        rarity = get_rarity(len(having) - (1 - BODY_ONLY_SHARE) * fields.count(BODY), len(skills)) ** RARITY_POWER
        assert list(tables.postings.skills[chosen]) == having
        assert list(tables.postings.fields[chosen]) == fields
        assert list(tables.postings.impacts[chosen]) == pytest.approx([weigh(plain, plain[n], word) for n in having])
        assert tables.postings.rarities[key] == pytest.approx(rarity)
    assert list_pairs(tables) == {
        pair: [number for number, each in enumerate(plain) if pair in each.pairs]
        for each in plain
        for pair in each.pairs
    }


def list_pairs(tables: IndexTables) -> dict[tuple[str, str], list[int]]:
    words = list(tables.words)
    starts = tables.pairs.starts
    pairs = {encode_pair(first, second): (first, second) for first in range(len(words)) for second in range(len(words))}
    return {
        (words[pairs[code][0]], words[pairs[code][1]]): list(tables.pairs.skills[starts[at] : starts[at + 1]])
        for at, code in enumerate(tables.pair_codes)
    }


@given(text=TEXTS)
def test_the_tokens_of_a_text_are_its_words(text: str) -> None:
    in_order = [
        [word for token in split_tokens(segment) for word in split_words(token)]
        for segment in split_into_segments(text)
    ]

    assert [words for words in in_order if words] == list(split_segments(text))
