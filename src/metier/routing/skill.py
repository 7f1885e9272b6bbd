"""What routing is given and what it gives back. Values only."""

from typing import NamedTuple

from msgspec import Struct

type Field = str
"""`name`, `description`, `tags` or `body`."""

NAME, DESCRIPTION, TAGS, BODY = 1, 2, 4, 8
"""One bit per field, as an index stores where a word stands."""

_FIELD_NAMES = ((NAME, "name"), (DESCRIPTION, "description"), (TAGS, "tags"), (BODY, "body"))


class RoutableSkill(Struct, frozen=True, kw_only=True):
    """A skill as far as routing reads it."""

    id: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    body: str = ""
    """The Markdown below the front matter, code blocks included or not; it counts less than the rest."""


class MatchedWord(NamedTuple):
    """One word of a request that was found in a skill."""

    word: str
    """As the request has it."""
    fields: tuple[Field, ...]
    meant: str = ""
    """The word of the catalog that was taken instead, where the request has an unknown word."""

    def render(self) -> str:
        word = f"{self.word} (read as {self.meant})" if self.meant else self.word
        return f"{word} in {'+'.join(self.fields)}"


class SkillCandidate(Struct, frozen=True, kw_only=True):
    """A skill with its score on 0-100 and the words that brought it there, the most telling first."""

    skill_id: str
    skill_name: str
    score: float
    matched: tuple[MatchedWord, ...] = ()
    named: bool = False
    """The request says the name of this skill."""
    similarity: float | None = None
    """The cosine between its description and the request, where embeddings were asked for and it is near."""

    @property
    def reason(self) -> str:
        """Why this skill is here, in words."""
        parts = ["the request names it"] if self.named else []
        parts += [match.render() for match in self.matched]
        parts += [] if self.similarity is None else [f"similar in meaning ({self.similarity:.2f})"]
        return "; ".join(parts) or "no word in common with the request"


def field_names(bits: int) -> tuple[Field, ...]:
    """The fields of a set of bits, in the order name, description, tags, body."""
    return tuple(name for bit, name in _FIELD_NAMES if bits & bit)
