"""What a look at a database server found. A value; `store.opening` looks."""

from metier.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    seconds_ahead: float
    """By how much the clock of the server is ahead of the one of this machine; negative where it is behind."""
    doubt_seconds: float
    """Half of the time that the question took: the difference may be off by this."""
    known: frozenset[str] = frozenset()
    """The runs that it knows of those that were asked about."""
