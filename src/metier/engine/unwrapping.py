"""One error out of a task group: callers catch what went wrong, not the group it went wrong in."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from metier.errors import MetierError


@contextmanager
def unwrapped() -> Generator[None]:
    """Raises the first of our own errors that a group holds, or its first error."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _find_cause(group) from group


def _find_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaves = list(_find_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, MetierError)), leaves[0])


def _find_leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _find_leaves(error)  # pyright: ignore[reportUnknownArgumentType]  a group holds exceptions
        else:
            yield error
