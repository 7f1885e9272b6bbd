"""The prefilter selects the skills that the model sees with descriptions, with a fallback if none matches. Pure.

No skill is hidden: the names of the others are still in the prompt, and the model can search for them.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metier.errors import NoSkillMatches
from metier.routing.ranking import RoutingIndex
from metier.routing.skill import FUSED_DEPTH, Similar, SkillCandidate

type ZeroCandidateStrategy = Literal["fallback_all_skills", "fail_fast"]

DEFAULT_TOP_K = 8
# `ranking.SOLID_EVIDENCE` is chosen so that a single solid word reaches this score.
DEFAULT_MIN_SCORE = 55.0
SPREAD = 60
"""The constant of reciprocal rank fusion, as its authors chose it: a larger one flattens differences between ranks."""
SIMILAR_WEIGHT = 0.9
"""Relative to 1.0 for words: a skill that only embeddings find gets at best the eighth rank."""


class Prefiltered(Struct, frozen=True, kw_only=True):
    """The candidates of one request, best first."""

    candidates: tuple[SkillCandidate, ...]
    considered: int
    """Size of the catalog."""
    fell_back: bool = False
    """True if no skill reached the score, so that all are candidates."""


def prefilter(
    index: RoutingIndex,
    query: str,
    *,
    top_k: int = DEFAULT_TOP_K,
    min_score: float = DEFAULT_MIN_SCORE,
    strategy: ZeroCandidateStrategy = "fallback_all_skills",
    similar: Sequence[Similar] = (),
) -> Prefiltered:
    """Select the candidates for a request.

    `min_score` applies to the best skill only: it decides whether there are candidates, not which of the `top_k` stay,
    because a threshold for each would save a few descriptions and lose right answers. `similar` has the skills found by
    embeddings: they change the order and add skills, but don't count for `min_score`.

    Raises `NoSkillMatches` if no skill reaches `min_score` and the strategy is `fail_fast`.
    """
    ranked = rank_skills(index, query, count=top_k, similar=similar)
    matching = tuple(each for each in ranked if each.matched or each.named or each.similarity is not None)
    if any(candidate.score >= min_score for candidate in matching):
        return Prefiltered(candidates=matching, considered=len(index))
    if strategy == "fail_fast":
        raise NoSkillMatches(
            f"None of {len(index)} skills reaches the score {min_score:g} for this request",
            hint="Name the skill, lower `prefilter_min_score`, or set `prefilter_zero_candidate_strategy` "
            "to `fallback_all_skills`",
        )
    return Prefiltered(candidates=_all_skills(index, ranked), considered=len(index), fell_back=True)


def rank_request(
    index: RoutingIndex, query: str, *, count: int = DEFAULT_TOP_K, similar: Sequence[Similar] = ()
) -> tuple[SkillCandidate, ...]:
    """Return the best skills for a request regardless of their score, or none if no skill matches at all."""
    found = prefilter(index, query, top_k=count, min_score=0, similar=similar)
    return () if found.fell_back else found.candidates


def rank_skills(
    index: RoutingIndex, query: str, *, count: int, similar: Sequence[Similar] = ()
) -> list[SkillCandidate]:
    """Return the best skills by words, fused with similar ones if given."""
    if not similar:
        return index.rank(query, count)
    by_words = [each for each in index.rank(query, max(count, FUSED_DEPTH)) if each.matched or each.named]
    ids = dict(zip(index.tables.names, index.tables.ids, strict=True))
    return fuse(by_words, similar, ids=ids)[:count]


def _all_skills(index: RoutingIndex, ranked: list[SkillCandidate]) -> tuple[SkillCandidate, ...]:
    """Return the ranked skills, then the rest by name."""
    seen = {candidate.skill_id for candidate in ranked}
    rest = (
        SkillCandidate(skill_id=skill_id, skill_name=name, score=0.0)
        for skill_id, name in zip(index.tables.ids, index.tables.names, strict=True)
        if skill_id not in seen
    )
    return (*ranked, *rest)


def fuse(
    by_words: Sequence[SkillCandidate], similar: Sequence[Similar], *, ids: dict[str, str]
) -> list[SkillCandidate]:
    """Fuse both rankings by reciprocal rank; named skills stay first. `ids` has the ids by name."""
    # Scores stay those of the words: a cosine doesn't show whether any skill matches the request.
    scores = {each.skill_name: each.score for each in similar}
    sums: dict[str, float] = {}
    for place, each in enumerate(similar[:FUSED_DEPTH], start=1):
        sums[each.skill_name] = SIMILAR_WEIGHT / (SPREAD + place)
    for place, candidate in enumerate(by_words[:FUSED_DEPTH], start=1):
        sums[candidate.skill_name] = sums.get(candidate.skill_name, 0.0) + 1 / (SPREAD + place)
    known = {candidate.skill_name: candidate for candidate in by_words}
    for name in scores:
        if name not in known and name in ids:
            known[name] = SkillCandidate(skill_id=ids[name], skill_name=name, score=0.0)
    fused = [replace(each, similarity=scores.get(name)) for name, each in known.items()]
    return sorted(fused, key=lambda each: (not each.named, -sums.get(each.skill_name, 0.0), each.skill_name))
