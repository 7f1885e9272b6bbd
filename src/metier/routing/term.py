"""A word of a request, as an index knows it. A value only."""

from typing import NamedTuple


class Term(NamedTuple):
    """One posting list that a word of the request leads to, perhaps by repair."""

    key: int
    weight: float
    word: str
    meant: str
    light: bool
    """Grammar only: refines the order, brings no skill in."""
    common: bool
    """A large share of the skills have it."""

    def weigh(self, factor: float) -> "Term":
        """The same with another weight; `_replace` takes four times as long, and a request has dozens."""
        return Term._make((self.key, self.weight * factor, self.word, self.meant, self.light, self.common))
