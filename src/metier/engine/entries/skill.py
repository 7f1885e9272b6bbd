"""Entries of skills: catalog, ranking, disclosure, handoff. Pure values."""

from typing import Literal

from pydantic import Field

from metier.events.skill import Candidate, DisclosedFile
from metier.messages import Value


class CatalogLoaded(Value):
    kind: Literal["catalog_loaded"] = "catalog_loaded"
    skills: tuple[str, ...]
    problems: int = 0
    shadowed: tuple[str, ...] = ()
    duration_ms: float = 0


class SimilarSkill(Value):
    """A skill that embeddings found near the request, with the cosine between the two."""

    skill_name: str
    score: float


RANKING_VERSION = 2
"""Raised when the same skills and task rank differently than before. 0.2 wrote version 1."""


class SkillsRanked(Value):
    kind: Literal["skills_ranked"] = "skills_ranked"
    candidates: tuple[Candidate, ...]
    considered: int
    strategy: str = ""
    min_score: float = 55.0
    """From this score on a candidate counts as an answer to the request."""
    similar: tuple[SimilarSkill, ...] = Field(default=(), exclude_if=lambda similar: not similar)
    """What embeddings found, nearest first, so that a replay asks for none."""
    version: int = Field(default=1, exclude_if=lambda version: version == 1)
    """The `RANKING_VERSION` that made it. A replay keeps the ranking of another version instead of computing it."""


class DisclosedPiece(Value):
    """A piece of skill content; its text is a blob, so that the journal stays small."""

    skill: str
    stage: Literal[1, 2, 3]
    file: DisclosedFile
    digest: str


class ContextDisclosed(Value):
    """Content was put in front of the model, or nothing was needed."""

    kind: Literal["context_disclosed"] = "context_disclosed"
    pieces: tuple[DisclosedPiece, ...] = ()
    refused: tuple[str, ...] = ()


class HandedOff(Value):
    kind: Literal["handed_off"] = "handed_off"
    from_skill: str
    to_skill: str
    rationale: str
    fallback: bool = False
