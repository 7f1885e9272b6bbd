"""Skills whose descriptions mean what a request means, as an embedding model sees it. Fused with the ranking by words.

Values and the seam; `embeddings` compares vectors, a replay reads the record.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from metier.errors import MetierError
from metier.routing.skill import SkillCandidate

DEPTH = 50
"""How far down either ranking a skill may stand to be fused."""
SPREAD = 60
"""The constant of reciprocal rank fusion: how little the first places differ from the next ones."""
SIMILAR_WEIGHT = 0.9
"""Beside 1.0 for words: a skill that meaning alone finds comes in at the eighth place of words at best."""


class Similar(NamedTuple):
    """A skill and the cosine between its description and the request."""

    skill_name: str
    score: float


class FoundSimilar(NamedTuple):
    """The nearest skills, or why there are none."""

    ranked: tuple[Similar, ...] = ()
    """The nearest first."""
    failure: str = ""
    """One sentence; the request is ranked by words only."""


class EmbeddingsFailed(MetierError):
    """No vectors can be had; the request is ranked by words only."""


class Similarities(Protocol):
    """Finds the skills of one catalog that are near a request. Never raises: where it fails it says so."""

    async def find(self, query: str) -> FoundSimilar: ...


def fuse(
    by_words: Sequence[SkillCandidate], similar: Sequence[Similar], *, ids: dict[str, str]
) -> list[SkillCandidate]:
    """Both rankings as one, by reciprocal rank. What the request names stays first. `ids` is by name.

    Scores stay those of the words: a cosine says nothing about whether the request has an answer at all.
    """
    scores = {each.skill_name: each.score for each in similar}
    sums: dict[str, float] = {}
    for place, each in enumerate(similar[:DEPTH], start=1):
        sums[each.skill_name] = SIMILAR_WEIGHT / (SPREAD + place)
    for place, candidate in enumerate(by_words[:DEPTH], start=1):
        sums[candidate.skill_name] = sums.get(candidate.skill_name, 0.0) + 1 / (SPREAD + place)
    known = {candidate.skill_name: candidate for candidate in by_words}
    for name in scores:
        if name not in known and name in ids:
            known[name] = SkillCandidate(skill_id=ids[name], skill_name=name, score=0.0)
    fused = [replace(each, similarity=scores.get(name)) for name, each in known.items()]
    return sorted(fused, key=lambda each: (not each.named, -sums.get(each.skill_name, 0.0), each.skill_name))
