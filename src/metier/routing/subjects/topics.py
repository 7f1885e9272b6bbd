"""How near a request and a skill are in subject, by the words that public skills use together. Pure.

It tells where few words do: "postgres is slow" shares a word with a skill for slow queries and with one for slow
kitchens. A subject brings no skill in, it orders those that share a word. In a large catalog many skills have the
subject of a request, and words alone tell them apart better; there it does not count.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

from metier.dataclass import dataclass
from metier.routing.skill import BODY
from metier.routing.subjects.public_words import read_public_words
from metier.routing.term import Term
from metier.routing.vectors import build_vector
from metier.routing.word_lists import FUNCTION_WORDS
from metier.routing.words import stem, weight_of

TOPIC_IMPACT = 3
"""How many times more a skill counts that is on the very subject of the request, in a catalog that is not large."""
FULL_SKILLS, MOST_SKILLS = 1_000, 2_500
"""Catalogs up to the first size count subjects fully, those from the second size on not at all."""
BODY_SHARE = 0.5
"""What all words of a body count together, beside 1.0 for name, description and tags."""
FEW_WORDS = 5
"""A description of fewer words gives no less room to the body."""
_ZERO = 128
_STEPS = 20
"""Weights of the words of a request are whole numbers of this many parts."""

_find_stem = lru_cache(maxsize=8_192)(stem)
"""Requests are made of the same words again and again."""


class Wanted(NamedTuple):
    """The subjects of a request. Whole numbers: a sum of products is exact and the same on every machine."""

    numbers: list[int]
    norm: float


@dataclass(slots=True)
class Topics:
    """The subjects of each skill of an index, one skill after the other."""

    numbers: bytes = b""
    """From -127 to 127; 128 stands for 0, because bytes without a sign are read twice as fast."""
    norms: array[float] = field(default_factory=lambda: array("f"))
    """One per skill; 0 where no word of the skill is known. None at all in a large catalog."""

    def reweigh(self, sums: Mapping[int, float], wanted: Wanted | None) -> Mapping[int, float]:
        """The sums of some skills, larger for those that are on the subjects of a request."""
        if wanted is None:
            return sums
        asked, norms, numbers = wanted.numbers, self.norms, self.numbers
        size, zero, impact = len(asked), _ZERO * sum(asked), find_impact(len(norms))
        reweighed: dict[int, float] = {}
        for skill, total in sums.items():
            start = skill * size
            product = math.sumprod(asked, numbers[start : start + size]) - zero
            cosine = product / (norms[skill] * wanted.norm) if product > 0 else 0.0
            # To four places, so that the last bits of a length do not decide an order.
            reweighed[skill] = total * (1 + impact * round(cosine, 4))
        return reweighed


def find_impact(skills: int) -> float:
    """What subjects count in a catalog of so many skills."""
    room = math.log(MOST_SKILLS / max(skills, FULL_SKILLS)) / math.log(MOST_SKILLS / FULL_SKILLS)
    return TOPIC_IMPACT * max(0.0, room)


class _Added:
    """The subjects of some words of one skill, added up."""

    __slots__ = ("lanes", "words")

    def __init__(self) -> None:
        self.lanes = 0
        self.words = 0

    def add(self, lanes: int) -> None:
        self.lanes += lanes
        self.words += 1


class TopicBuilder:
    """Collects the words of a catalog, one after the other, each with the skills that have it."""

    def __init__(self, skills: int) -> None:
        self._public = read_public_words()
        counted = skills if find_impact(skills) else 0
        self._told = [_Added() for _ in range(counted)]
        self._bodies = [_Added() for _ in range(counted)]

    @property
    def counts(self) -> bool:
        """The catalog is not too large for subjects."""
        return bool(self._told)

    def add(self, word: str, skills: Sequence[int], fields: Sequence[int]) -> None:
        lanes = self._public.find_lanes(word)
        if lanes:
            for skill, bits in zip(skills, fields, strict=True):
                (self._bodies if bits == BODY else self._told)[skill].add(lanes)

    def build(self) -> Topics:
        numbers, norms = bytearray(), array("f")
        for told, body in zip(self._told, self._bodies, strict=True):
            share = BODY_SHARE * max(told.words, FEW_WORDS) / body.words if body.words else 0.0
            pairs = zip(self._read(told), self._read(body), strict=True)
            vector = build_vector([first + share * second for first, second in pairs])
            norms.append(vector.norm if vector else 0.0)
            numbers += bytes([_ZERO + number for number in (vector.numbers if vector else self._read(_Added()))])
        return Topics(bytes(numbers), norms)

    def _read(self, added: _Added) -> list[int]:
        return self._public.read(added.lanes, added.words)


def find_wanted(readings: Mapping[str, tuple[Term, ...]], factors: Mapping[str, float]) -> Wanted | None:
    """The subjects of a request, by what its words mean and how much each counts; nothing where no word is known."""
    public = read_public_words()
    weights: dict[int, int] = {}
    for word, terms in readings.items():
        if word not in FUNCTION_WORDS:
            lanes = public.find_lanes(_find_stem(word)) or public.find_lanes(
                _find_stem(terms[0].meant) if terms else ""
            )
            if lanes:
                weights[lanes] = round(_STEPS * weight_of(word) * factors[word])
    total = sum([lanes * weight for lanes, weight in weights.items()])
    numbers = public.read(total, sum(weights.values()))
    norm = math.sqrt(math.sumprod(numbers, numbers))
    return Wanted(numbers, norm) if norm else None
