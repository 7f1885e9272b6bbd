"""Input and output values of routing."""

from functools import cache
from typing import NamedTuple, Protocol

from msgspec import Struct

from metier.errors import MetierError

type Field = str
"""`name`, `description`, `tags` or `body`."""

NAME, DESCRIPTION, TAGS, BODY = 1, 2, 4, 8
"""One bit per field, for the fields of a word in the index."""

_FIELD_NAMES = ((NAME, "name"), (DESCRIPTION, "description"), (TAGS, "tags"), (BODY, "body"))


class RoutableSkill(Struct, frozen=True, kw_only=True):
    """The fields of a skill that routing reads."""

    id: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    body: str = ""
    """Markdown after the front matter, with a lower weight than the other fields."""


class MatchedWord(NamedTuple):
    """A word of the request that a skill has."""

    word: str
    """The spelling in the request."""
    fields: tuple[Field, ...]
    meant: str = ""
    """The spelling in the catalog, if the request's was corrected."""

    def render(self) -> str:
        word = f"{self.word} (read as {self.meant})" if self.meant else self.word
        return f"{word} in {'+'.join(self.fields)}"


class SkillCandidate(Struct, frozen=True, kw_only=True):
    """A skill with its score from 0 to 100 and its matched words, the most important first."""

    skill_id: str
    skill_name: str
    score: float
    matched: tuple[MatchedWord, ...] = ()
    named: bool = False
    """True if the request names this skill."""
    similarity: float | None = None
    """Cosine similarity of its description and the request, if embeddings found it."""

    @property
    def reason(self) -> str:
        """The reason for this candidate, for display."""
        parts = ["the request names it"] if self.named else []
        parts += [match.render() for match in self.matched]
        parts += [] if self.similarity is None else [f"similar in meaning ({self.similarity:.2f})"]
        return "; ".join(parts) or "no word in common with the request"


FUSED_DEPTH = 50
"""Number of skills that are fused of each ranking, by words and by similarity."""


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


@cache
def field_names(bits: int) -> tuple[Field, ...]:
    """List the fields of a set of bits, in the order name, description, tags, body."""
    return tuple(name for bit, name in _FIELD_NAMES if bits & bit)
