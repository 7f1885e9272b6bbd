"""Entries of skills: catalog, ranking, disclosure, handoff. Pure values."""

from typing import Annotated, Literal

from metier.engine.entries.base import JournalEntry
from metier.events.skill import Candidate, DisclosedFile
from metier.values import OmitDefault, StoredValue


class CatalogLoaded(JournalEntry, frozen=True, kw_only=True, tag="catalog_loaded"):
    skills: tuple[str, ...]
    problems: int = 0
    shadowed: tuple[str, ...] = ()
    duration_ms: float = 0.0


class SimilarSkill(StoredValue, frozen=True, kw_only=True):
    """A skill that embeddings found, with the cosine of its similarity."""

    skill_name: str
    score: float


RANKING_VERSION = 4
"""Raised when the same skills and task are ranked differently than before. 0.2 wrote version 1."""


class SkillsRanked(JournalEntry, frozen=True, kw_only=True, tag="skills_ranked"):
    candidates: tuple[Candidate, ...]
    considered: int
    strategy: str = ""
    min_score: float = 55.0
    """Minimum score of a candidate that counts as an answer to the request."""
    similar: Annotated[tuple[SimilarSkill, ...], OmitDefault()] = ()
    """Skills that embeddings found, nearest first, so that a replay needs no embeddings."""
    version: Annotated[int, OmitDefault()] = 1
    """Its `RANKING_VERSION`. A replay keeps the ranking of another version instead of computing it."""


class DisclosedPiece(StoredValue, frozen=True, kw_only=True):
    """A piece of skill content; its text is a blob, so that the journal stays small."""

    skill: str
    stage: Literal[1, 2, 3]
    file: DisclosedFile
    digest: str


class ContextDisclosed(JournalEntry, frozen=True, kw_only=True, tag="context_disclosed"):
    """Content was disclosed to the model, or none was needed."""

    pieces: tuple[DisclosedPiece, ...] = ()
    refused: tuple[str, ...] = ()


class HandedOff(JournalEntry, frozen=True, kw_only=True, tag="handed_off"):
    from_skill: str
    to_skill: str
    rationale: str
    fallback: bool = False
