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
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import msgspec
from msgspec import Struct

from metier.routing.named_skills import normal_name
from metier.routing.skill import BODY, DESCRIPTION, NAME, TAGS, RoutableSkill
from metier.routing.word_lists import FILLER_WORDS, FUNCTION_WORDS
from metier.routing.words import count_tokens, split_into_tokens, split_words, stem

META_LENGTH_WEIGHT, NAME_LENGTH_WEIGHT, BODY_LENGTH_WEIGHT = 0.4, 0.3, 0.45
"""Length normalization of fields: 0 none, 1 proportional."""
NAME_IMPACT, BODY_IMPACT = 0.3, 0.55
"""Relative to 1.0 for name, description and tags together."""
SATURATION = 0.6
"""Saturation of repeated words: repetition multiplies a word's impact by at most 1 + this."""
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


class Term(NamedTuple):
    """A posting list for a word of the request, possibly after typo correction."""

    key: int
    weight: float
    word: str
    meant: str
    light: bool
    """True for function words, which refine the order but select no skill."""

    def weigh(self, factor: float) -> "Term":
        """Return the term with its weight multiplied."""
        # `_replace` takes four times as long, and a request has dozens of terms.
        return Term._make((self.key, self.weight * factor, self.word, self.meant, self.light))


class Postings(Struct):
    """The skills of each key with impacts and fields, in flat columns."""

    starts: array[int] = msgspec.field(default_factory=lambda: array("I", [0]))
    """The start of each key's skills, and the end of the last."""
    skills: array[int] = msgspec.field(default_factory=lambda: array("I"))
    impacts: array[float] = msgspec.field(default_factory=lambda: array("f"))
    fields: array[int] = msgspec.field(default_factory=lambda: array("B"))
    rarities: array[float] = msgspec.field(default_factory=lambda: array("f"))


class IndexTables(Struct, frozen=True):
    """All data for ranking, built by `build_tables` and cached on disk by `catalog`."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    words: dict[str, int]
    """Keys in `postings` by stem."""
    postings: Postings
    pair_starts: array[int]
    """The start of each word's pairs, and the end of the last."""
    pair_seconds: array[int]
    """The second word of every pair, sorted within the first word; its position is the key in `pairs`."""
    pairs: Postings
    forms: dict[str, int]
    """Every spelling in the catalog and every function and filler word, with the key of its stem, or -1."""
    name_words: tuple[tuple[int, ...], ...]
    """Keys of the words of each name."""
    name_rarities: array[float]
    """Summed rarity of the words in each name."""
    by_name: dict[str, tuple[int, ...]]
    """Skills by normalized name."""
    forms_by_start: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """`forms` grouped for typo correction, filled on first use."""
    readings: dict[str, tuple[Term, ...]] = msgspec.field(default_factory=dict[str, tuple[Term, ...]])
    """Terms of the words of `forms`, filled on use."""
    rows: dict[int, array[float]] = msgspec.field(default_factory=dict[int, "array[float]"])
    """Impacts of function words on every skill, filled on use."""

    def __len__(self) -> int:
        return len(self.ids)

    def list_pairs(self, words: Iterable[int]) -> Iterator[int]:
        """Yield the keys in `pairs` of adjacent words; -1 is in no pair."""
        starts, seconds = self.pair_starts, self.pair_seconds
        for first, second in pairwise(words):
            if first >= 0 and second >= 0:
                end = starts[first + 1]
                at = bisect_left(seconds, second, starts[first], end)
                if at < end and seconds[at] == second:
                    yield at

    def get_row(self, key: int) -> array[float]:
        """Return the cached impacts of a function word on every skill."""
        row = self.rows.get(key)
        if row is None:
            row = array("f", bytes(4 * len(self)))
            start, end = self.postings.starts[key], self.postings.starts[key + 1]
            for skill, impact in zip(self.postings.skills[start:end], self.postings.impacts[start:end], strict=True):
                row[skill] = impact
            self.rows[key] = row
        return row


def build_tables(skills: Iterable[RoutableSkill]) -> IndexTables:
    """Index a catalog. The order of the skills does not matter."""
    ordered = sorted(skills, key=lambda skill: (skill.name, skill.id))
    return build_ordered_tables(ordered) if ordered else _build_empty()


@cache
def _build_empty() -> IndexTables:
    # Shared, because even an empty index has all function and filler words.
    return build_ordered_tables([])


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
        self._vocabulary = _Vocabulary()
        self._ids: list[str] = []
        self._skill_names: list[str] = []
        self._names: list[list[int]] = []
        self._meta_lengths: list[int] = []
        self._body_lengths: list[int] = []
        self._pair_lengths: list[int] = []
        self._mentions: defaultdict[int, list[_Mention]] = defaultdict(list)
        self._pairs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        # Alternating skill numbers and counts for each token. Arrays, because integer objects for the millions of
        # entries of a large catalog would need too much memory.
        self._body_tokens: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))

    def add(self, skill: RoutableSkill) -> None:
        number = len(self._ids)
        pairs: set[tuple[int, int]] = set()
        description = remove_exclusions(skill.description)
        name = self._read(skill.name, pairs)
        words = self._read(description, pairs)
        tags = [key for tag in skill.tags for key in self._read(tag, pairs)]
        self._add_mentions(number, name, words, tags=tags, triggers=self._read(get_trigger_clauses(description)))
        for pair in pairs:
            self._pairs[pair].append(number)
        self._ids.append(skill.id)
        self._skill_names.append(skill.name)
        self._names.append(name)
        self._meta_lengths.append(len(name) + len(words) + len(tags))
        self._pair_lengths.append(len(pairs))
        self._body_lengths.append(self._count_body(number, skill.body))

    def build(self) -> IndexTables:
        bodies = self._join_bodies()
        words, forms = self._vocabulary.words, self._vocabulary.forms
        for word in sorted(FUNCTION_WORDS | FILLER_WORDS):
            forms.setdefault(word, words.get(stem(word), -1))
        postings = self._build_postings(bodies)
        pairs = sorted(self._pairs)
        firsts = Counter([first for first, _ in pairs])
        names = [frozenset(name) for name in self._names]
        return IndexTables(
            ids=tuple(self._ids),
            names=tuple(self._skill_names),
            words=words,
            postings=postings,
            pair_starts=array("I", accumulate([firsts[word] for word in range(len(words))], initial=0)),
            pair_seconds=array("I", [second for _, second in pairs]),
            pairs=self._build_pair_postings(pairs),
            forms=forms,
            name_words=tuple([tuple(sorted(name)) for name in names]),
            name_rarities=array("f", [sum([postings.rarities[word] for word in name]) for name in names]),
            by_name=_build_name_table(self._skill_names),
        )

    def _read(self, text: str, pairs: set[tuple[int, int]] | None = None) -> list[int]:
        """Return the words of a text and add adjacent ones to `pairs`."""
        keys: list[int] = []
        for tokens in split_into_tokens(text):
            numbers = [*chain.from_iterable(map(self._vocabulary.__getitem__, tokens))]
            if pairs is not None:
                pairs.update(pairwise(numbers))
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
        """Count the tokens of a body and return their number."""
        counted = count_tokens(text)
        for token, times in counted.items():
            self._body_tokens[token].extend((number, times))
        return counted.total()

    def _join_bodies(self) -> dict[int, list[tuple[int, int]]]:
        """Map each word to skill numbers and counts. Each token is split once; function words are omitted."""
        entries: defaultdict[int, list[array[int]]] = defaultdict(list)
        for token, columns in self._body_tokens.items():
            keys = self._vocabulary.number([word for word in split_words(token) if word not in FUNCTION_WORDS])
            for key in keys:
                entries[key].append(columns)
            if len(keys) != 1:
                for skill, times in zip(columns[::2], columns[1::2], strict=True):
                    self._body_lengths[skill] += (len(keys) - 1) * times
        return {key: _sum_counts(columns) for key, columns in entries.items()}

    def _build_postings(self, bodies: dict[int, list[tuple[int, int]]]) -> Postings:
        body_drags = _compute_drags(self._body_lengths, BODY_LENGTH_WEIGHT)
        meta_drags = _compute_drags(self._meta_lengths, META_LENGTH_WEIGHT)
        name_drags = _compute_drags([len(name) for name in self._names], NAME_LENGTH_WEIGHT)
        postings = Postings()
        for key in range(len(self._vocabulary.words)):
            impacts = {skill: BODY_IMPACT * _saturate(times, body_drags[skill]) for skill, times in bodies.get(key, ())}
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

    def _build_pair_postings(self, pairs: Sequence[tuple[int, int]]) -> Postings:
        impacts = [_saturate(1, drag) for drag in _compute_drags(self._pair_lengths, META_LENGTH_WEIGHT)]
        owners = [self._pairs[pair] for pair in pairs]
        skills = [*chain.from_iterable(owners)]
        return Postings(
            starts=array("I", accumulate(map(len, owners), initial=0)),
            skills=array("I", skills),
            impacts=array("f", [impacts[skill] for skill in skills]),
            rarities=array("f", [get_rarity(len(each), len(self._ids)) for each in owners]),
        )


class _Vocabulary(dict[str, tuple[int, ...]]):
    """Numbers words by token. Each token is split once, and each spelling stemmed once."""

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[str, int] = {}
        self.forms: dict[str, int] = {}

    def __missing__(self, token: str) -> tuple[int, ...]:
        keys = self[token] = tuple(self.number(split_words(token)))
        return keys

    def number(self, words: Iterable[str]) -> list[int]:
        """Return the numbers of words from `split_words`."""
        keys: list[int] = []
        for word in words:
            key = self.forms.get(word)
            if key is None:
                key = self.forms[word] = self.words.setdefault(stem(word), len(self.words))
            keys.append(key)
        return keys


def _build_name_table(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Map normalized names to skill numbers."""
    table: defaultdict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        if key := normal_name(name):
            table[key].append(number)
    return {key: tuple(numbers) for key, numbers in table.items()}


def _sum_counts(columns: Sequence[array[int]]) -> list[tuple[int, int]]:
    """Sum the counts of all spellings per skill."""
    if len(columns) == 1:
        return [*zip(columns[0][::2], columns[0][1::2], strict=True)]
    counts: Counter[int] = Counter()
    for each in columns:
        for skill, times in zip(each[::2], each[1::2], strict=True):
            counts[skill] += times
    return [*counts.items()]


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
