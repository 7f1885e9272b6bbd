"""Text in PostgreSQL, which cannot hold the character NUL. All other text is stored as it is."""

import re

from metier.lazy_regex import lazy_regex
from metier.store.marks import make_printable

_MARK = "\x10"  # data link escape: "what follows means something else"
_MARKED = lazy_regex(f"{_MARK}(.)", re.DOTALL)


def encode(text: str) -> str:
    """Beginnings stay beginnings: a prefix of a text is stored as a prefix of what is stored for it."""
    return make_printable(text).replace(_MARK, _MARK + _MARK).replace("\x00", _MARK + "0")


def decode(text: str) -> str:
    return _MARKED.sub(lambda found: "\x00" if found[1] == "0" else found[1], text) if _MARK in text else text
