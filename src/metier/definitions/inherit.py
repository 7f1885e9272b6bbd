"""What `inherit` means in a `tools`, `skills` or `tasks` list: the one place that decides it."""

from collections.abc import Sequence

INHERIT = "inherit"


def find_limit(own: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names that a skill's list leaves of what surrounds it; None where it leaves everything.

    What it adds beside `inherit` counts for nothing here: while a skill is in charge, authority only narrows.
    """
    return None if own is None or INHERIT in own else tuple(own)


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
