"""What `inherit` means in a `tools`, `skills` or `tasks` list: the one place that decides it."""

from collections.abc import Sequence

INHERIT = "inherit"


def resolve_list(own: Sequence[str] | None, inherited: Sequence[str]) -> tuple[str, ...]:
    """The names that count, each once, inherited ones first.

    No list, or `inherit` alone, takes what surrounds it; `inherit` among others adds to it; a list without `inherit`
    replaces it, and an empty list allows nothing.
    """
    if own is None:
        return tuple(dict.fromkeys(inherited))
    names = [name for name in own if name != INHERIT]
    if INHERIT in own:
        return tuple(dict.fromkeys([*inherited, *names]))
    return tuple(dict.fromkeys(names))
