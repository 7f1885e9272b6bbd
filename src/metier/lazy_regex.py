"""`lazy_regex` for patterns of modules: compiled when it is first used, not when its module is imported.

The standard library compiles in Python. A run imports four hundred patterns and uses a few dozen of them; compiling the
others took a fifth of its processor time. A pattern behaves as a compiled one does: a test compares them, and compiles
every one.
"""

import re
from typing import TYPE_CHECKING, Any

__all__ = ["lazy_regex"]

_KEPT = (
    "findall", "finditer", "flags", "fullmatch", "groupindex", "groups", "match", "scanner", "search", "split", "sub",
    "subn",
)  # fmt: skip

if TYPE_CHECKING:
    from re import compile as lazy_regex
else:

    class lazy_regex:  # noqa: N801 - used as the function that type checkers see
        __slots__ = ("_flags", "pattern", *_KEPT)

        def __init__(self, pattern: str | bytes, flags: int = 0) -> None:
            self.pattern = pattern
            self._flags = flags

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of what is compiled
            compiled = re.compile(self.pattern, self._flags)
            for kept in _KEPT:
                setattr(self, kept, getattr(compiled, kept))
            return getattr(compiled, name)

        def __reduce__(self) -> tuple[type, tuple[str | bytes, int]]:
            return lazy_regex, (self.pattern, self._flags)

        def __repr__(self) -> str:
            return repr(re.compile(self.pattern, self._flags))
