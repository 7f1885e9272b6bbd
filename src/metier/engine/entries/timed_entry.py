"""The base of journal entries that record when they were written. A pure value."""

from metier.messages import Value


class TimedEntry(Value):
    """An entry that says when it was written, so that durations can be told from the journal alone, on any machine."""

    recorded_at: str = ""
    """ISO 8601, set by the driver that records it; empty in journals of versions that did not note it."""
