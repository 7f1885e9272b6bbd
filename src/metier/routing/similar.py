"""Values and interface of the search for similar skills, and the fusion of its results with the ranking by words.

`embeddings` implements the search by comparing vectors, a replay by reading the journal.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from metier.errors import MetierError
from metier.routing.skill import SkillCandidate

DEPTH = 50
"""Number of skills of each ranking that are fused."""
SPREAD = 60
"""The constant of reciprocal rank fusion: a larger one flattens the differences between ranks."""
SIMILAR_WEIGHT = 0.9
"""Relative to 1.0 for words: a skill that only embeddings find gets at best the eighth rank."""


class Similar(NamedTuple):
    """A skill and the cosine similarity of its description and the request."""

    skill_name: str
    score: float


class FoundSimilar(NamedTuple):
    """The most similar skills, or the reason that there are none."""

    ranked: tuple[Similar, ...] = ()
    """The most similar first."""
    failure: str = ""
    """The reason that skills are only ranked by words."""


class EmbeddingsFailed(MetierError):
    """Embeddings are unavailable, so skills are only ranked by words."""


class Similarities(Protocol):
    """Finds similar skills of one catalog. Never raises; failures are part of the result."""

    async def find(self, query: str) -> FoundSimilar: ...


def fuse(
    by_words: Sequence[SkillCandidate], similar: Sequence[Similar], *, ids: dict[str, str]
) -> list[SkillCandidate]:
    """Fuse both rankings by reciprocal rank; named skills stay first. `ids` has the ids by name."""
    # Scores stay those of the words: a cosine doesn't show whether any skill matches the request.
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
