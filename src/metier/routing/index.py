"""The posting lists of a catalog, which limit ranking to skills that share a word with the request. Pure.

Skills are numbered by name, then ID; the smaller number wins a tie. The impact of each posting is precomputed, so that
ranking only multiplies and adds.

Clauses such as "Do not use for X" are removed from descriptions, because they attract requests for X. Clauses after
"Use when" resemble requests and have a slightly higher weight.
"""

import math
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import msgspec
from msgspec import Struct

from metier.routing.named_skills import normal_name
from metier.routing.skill import BODY, DESCRIPTION, NAME, TAGS, RoutableSkill
from metier.routing.words import FILLER_WORDS, FUNCTION_WORDS, split_into_segments, split_tokens, split_words, stem

META_LENGTH_WEIGHT, NAME_LENGTH_WEIGHT, BODY_LENGTH_WEIGHT = 0.4, 0.3, 0.45
"""Length normalization of fields: 0 none, 1 proportional. Below the usual 0.75 of BM25, because a long description or
body rather covers more uses than repeats one."""
NAME_IMPACT, BODY_IMPACT = 0.3, 0.55
"""Relative to 1.0 for name, description and tags together. A body counts for large catalogs: with 0.4, recall falls by
1.1 points at 10,000 skills."""
SATURATION = 0.6
"""Saturation of repeated words: repetition multiplies a word's impact by at most 1 + this.
The usual 1.2 of BM25 finds no more skills."""
BODY_ONLY_SHARE = 0.8
"""Weight of skills with a word only in their body in the word's document frequency."""
TRIGGER_SHARE = 0.15
"""Additional occurrences of a word after "Use when"."""
RARITY_POWER = 0.9
"""Below 1: one rare word does not outweigh several ordinary ones."""

UNSEEN_SKILLS = 30
"""Virtual skills without any of the words, so that the common subject of a small catalog keeps some weight."""

_EXCLUSION = re.compile(
    r"(?:\b(?:do not|don't|don’t|never|not)\s+"
    r"(?:use|trigger|invoke|activate|apply|call|load|for|intended|meant|suitable)\b"
    r"|\bskip (?:on|for|when|if|this)\b|\bavoid (?:for|when|using)\b|\bexcept when\b)[^.;\n]*",
    re.IGNORECASE,
)
_EXCLUSION_WORDS = ("not", "don", "never", "skip", "avoid", "except")
"""Every exclusion clause has one of these. Checking them first takes a tenth of the time."""
_TRIGGER = re.compile(
    r"\b(?:use (?:this (?:skill )?)?(?:when|for|if|to|whenever|after|before|with)|triggers?\b|when (?:the )?users?"
    r"|invoke when|activates? (?:when|on|for)|also use|should be used)",
    re.IGNORECASE,
)


class Postings(Struct, frozen=True):
    """The skills of each key with impacts and fields, in flat columns."""

    starts: array[int]
    """The start of each key's skills, and the end of the last."""
    skills: array[int]
    impacts: array[float]
    fields: array[int]
    """Bits."""
    rarities: array[float]

    def find(self, key: int, skill: int) -> int | None:
        """Return the position of a skill under a key, or None."""
        end = self.starts[key + 1]
        at = bisect_left(self.skills, skill, self.starts[key], end)
        return at if at < end and self.skills[at] == skill else None


class IndexTables(Struct, frozen=True):
    """All data for ranking, built by `build_tables` and cached on disk by `catalog`."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    words: dict[str, int]
    """Keys in `postings` by stem."""
    postings: Postings
    pair_codes: array[int]
    """Every pair of adjacent words as `encode_pair` gives it, sorted; the position is the key in `pairs`."""
    pairs: Postings
    forms: dict[str, int]
    """Every spelling in the catalog and every function and filler word, with the key of its stem, or -1."""
    name_words: tuple[tuple[int, ...], ...]
    """Keys of the words of each name."""
    by_name: dict[str, tuple[int, ...]]
    """Skills by normalized name."""
    forms_by_start: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """`forms` grouped for typo correction, filled on first use."""

    def __len__(self) -> int:
        return len(self.ids)

    def list_pairs(self, words: Iterable[int]) -> Iterator[int]:
        """Yield the keys in `pairs` of adjacent words; -1 is in no pair."""
        codes = self.pair_codes
        for first, second in pairwise(words):
            if first >= 0 and second >= 0:
                code = encode_pair(first, second)
                at = bisect_left(codes, code)
                if at < len(codes) and codes[at] == code:
                    yield at


def encode_pair(first: int, second: int) -> int:
    """Encode two word keys as one number, which sorts like the pair."""
    # Numbers, not tuples: an array holds the many pairs of a large catalog in eight bytes each.
    return first << 32 | second


def build_tables(skills: Iterable[RoutableSkill]) -> IndexTables:
    """Index a catalog. The order of the skills does not matter."""
    return build_ordered_tables(sorted(skills, key=lambda skill: (skill.name, skill.id)))


def build_ordered_tables(skills: Iterable[RoutableSkill]) -> IndexTables:
    """Index skills that are sorted by name, then id. They are read one at a time, because bodies need much memory."""
    counted = _WordCounter()
    for skill in skills:
        counted.add(skill)
    return counted.build()


class _Mention(NamedTuple):
    """A word in the name, description or tags of a skill."""

    skill: int
    times: float
    """Occurrences, including `TRIGGER_SHARE`."""
    in_name: int
    fields: int
    """Bits."""


class _WordCounter:
    """Counts the words of skills, one skill at a time."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary = _Vocabulary()
        self._keys = _KeysByToken(vocabulary)
        # Function words are in every body, so their posting lists would have the whole catalog and tell nothing.
        self._body_keys = _KeysByToken(vocabulary, omitted=FUNCTION_WORDS)
        self._ids: list[str] = []
        self._skill_names: list[str] = []
        self._names: list[list[int]] = []
        self._meta_lengths: list[int] = []
        self._body_lengths: list[int] = []
        self._pair_lengths: list[int] = []
        self._mentions: defaultdict[int, list[_Mention]] = defaultdict(list)
        self._pairs: defaultdict[int, list[int]] = defaultdict(list)
        # Alternating skill numbers and counts for each word. Arrays, because integer objects for the millions of
        # entries of a large catalog would need too much memory.
        self._bodies: defaultdict[int, array[int]] = defaultdict(lambda: array("I"))

    def add(self, skill: RoutableSkill) -> None:
        number = len(self._ids)
        pairs: set[int] = set()
        description = remove_exclusions(skill.description)
        name = self._read(skill.name, pairs)
        words = self._read(description, pairs)
        tags = [key for tag in skill.tags for key in self._read(tag, pairs)]
        self._add_mentions(number, name, words, tags=tags, triggers=self._read(get_trigger_clauses(description), set()))
        for pair in pairs:
            self._pairs[pair].append(number)
        self._ids.append(skill.id)
        self._skill_names.append(skill.name)
        self._names.append(name)
        self._meta_lengths.append(len(name) + len(words) + len(tags))
        self._pair_lengths.append(len(pairs))
        self._body_lengths.append(self._count_body(number, skill.body))

    def build(self) -> IndexTables:
        words, forms = self._vocabulary.words, self._vocabulary.forms
        for word in FUNCTION_WORDS | FILLER_WORDS:
            forms.setdefault(word, words.get(stem(word), -1))
        codes = sorted(self._pairs)
        return IndexTables(
            ids=tuple(self._ids),
            names=tuple(self._skill_names),
            words=words,
            postings=self._build_postings(),
            pair_codes=array("Q", codes),
            pairs=self._build_pair_postings([self._pairs[code] for code in codes]),
            # Sorted, because typo correction resolves ties by order, which must not depend on the order of the skills.
            forms=dict(sorted(forms.items())),
            name_words=tuple([tuple(sorted(set(name))) for name in self._names]),
            by_name=_build_name_table(self._skill_names),
        )

    def _read(self, text: str, pairs: set[int]) -> list[int]:
        """Return the words of a text and add adjacent ones to `pairs`."""
        keys: list[int] = []
        for segment in split_into_segments(text):
            numbers = [*chain.from_iterable(map(self._keys.__getitem__, split_tokens(segment)))]
            pairs.update([encode_pair(first, second) for first, second in pairwise(numbers)])
            keys += numbers
        return keys

    def _add_mentions(
        self, number: int, name: list[int], words: list[int], *, tags: list[int], triggers: list[int]
    ) -> None:
        in_name, triggered = Counter(name), Counter(triggers)
        fields = dict.fromkeys(words, DESCRIPTION)
        for bit, keys in ((NAME, name), (TAGS, tags)):
            for key in keys:
                fields[key] = fields.get(key, 0) | bit
        for key, times in Counter([*name, *words, *tags]).items():
            weighted = times + TRIGGER_SHARE * triggered.get(key, 0)
            self._mentions[key].append(_Mention(number, weighted, in_name.get(key, 0), fields[key]))

    def _count_body(self, number: int, text: str) -> int:
        """Count the words of a body and return their number."""
        counts: dict[int, int] = {}
        for token, times in Counter(split_tokens(text)).items():
            for key in self._body_keys[token]:
                counts[key] = counts.get(key, 0) + times
        for key, times in counts.items():
            self._bodies[key].extend((number, times))
        return sum(counts.values())

    def _build_postings(self) -> Postings:
        body_drags = _compute_drags(self._body_lengths, BODY_LENGTH_WEIGHT)
        meta_drags = _compute_drags(self._meta_lengths, META_LENGTH_WEIGHT)
        name_drags = _compute_drags([len(name) for name in self._names], NAME_LENGTH_WEIGHT)
        postings = Postings(array("I", [0]), array("I"), array("f"), array("B"), array("f"))
        for key in range(len(self._vocabulary.words)):
            bodies = self._bodies.get(key, ())
            impacts = {
                skill: BODY_IMPACT * _saturate(times, body_drags[skill])
                for skill, times in zip(bodies[::2], bodies[1::2], strict=True)
            }
            fields = dict.fromkeys(impacts, BODY)
            for skill, times, in_name, bits in self._mentions.get(key, ()):
                impact = _saturate(times, meta_drags[skill])
                if in_name:
                    impact += NAME_IMPACT * _saturate(in_name, name_drags[skill])
                impacts[skill] = impacts.get(skill, 0.0) + impact
                fields[skill] = fields.get(skill, 0) | bits
            numbers = sorted(impacts)
            postings.skills.extend(numbers)
            postings.impacts.extend([impacts[skill] for skill in numbers])
            postings.fields.extend([fields[skill] for skill in numbers])
            postings.starts.append(len(postings.skills))
            having = len(impacts) - (1 - BODY_ONLY_SHARE) * sum([bits == BODY for bits in fields.values()])
            postings.rarities.append(get_rarity(having, len(self._ids)) ** RARITY_POWER)
        return postings

    def _build_pair_postings(self, owners: Sequence[Sequence[int]]) -> Postings:
        impacts = [_saturate(1, drag) for drag in _compute_drags(self._pair_lengths, META_LENGTH_WEIGHT)]
        skills = [*chain.from_iterable(owners)]
        return Postings(
            starts=array("I", accumulate(map(len, owners), initial=0)),
            skills=array("I", skills),
            impacts=array("f", [impacts[skill] for skill in skills]),
            fields=array("B"),
            rarities=array("f", [get_rarity(len(each), len(self._ids)) for each in owners]),
        )


class _Vocabulary:
    """Numbers words by stem. Each spelling is stemmed once."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.forms: dict[str, int] = {}

    def number(self, word: str) -> int:
        key = self.forms.get(word)
        if key is None:
            key = self.forms[word] = self.words.setdefault(stem(word), len(self.words))
        return key


class _KeysByToken(dict[str, tuple[int, ...]]):
    """The keys of the words of each token. Each token is split once."""

    def __init__(self, vocabulary: _Vocabulary, *, omitted: Container[str] = ()) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._omitted = omitted

    def __missing__(self, token: str) -> tuple[int, ...]:
        words = [word for word in split_words(token) if word not in self._omitted]
        keys = self[token] = tuple([self._vocabulary.number(word) for word in words])
        return keys


def _build_name_table(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Map normalized names to skill numbers."""
    table: defaultdict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        if key := normal_name(name):
            table[key].append(number)
    return {key: tuple(numbers) for key, numbers in table.items()}


def _compute_drags(lengths: Sequence[int], length_weight: float) -> list[float]:
    """Compute the length normalization of each skill."""
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    if not mean:
        return [SATURATION] * len(lengths)
    return [SATURATION * (1 - length_weight + length_weight * length / mean) for length in lengths]


def _saturate(times: float, drag: float) -> float:
    return times * (SATURATION + 1) / (times + drag)


def remove_exclusions(description: str) -> str:
    """Remove exclusion clauses from a description, unless nothing else would remain."""
    folded = description.casefold()
    if not any(word in folded for word in _EXCLUSION_WORDS):
        return description
    rest = _EXCLUSION.sub(" . ", description)
    return rest if any(character.isalnum() for character in rest) else description


def get_trigger_clauses(description: str) -> str:
    """Return the text from the first "Use when" or similar phrase on."""
    match = _TRIGGER.search(description)
    return description[match.start() :] if match else ""


def get_rarity(having: float, catalog_size: int) -> float:
    """Compute the inverse document frequency of a word."""
    return math.log(1 + (catalog_size + UNSEEN_SKILLS - having + 0.5) / (having + 0.5))
