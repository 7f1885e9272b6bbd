"""Base classes of journal entries. Pure values."""

from typing import cast

from metier.values import StoredValue


# Defaults are omitted, because most entries use few of their fields and resuming reads the whole journal.
class JournalEntry(StoredValue, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """One thing that happened in a run."""

    @property
    def kind(self) -> str:
        """The tag of the entry's JSON."""
        return cast("str", self.__struct_config__.tag)  # every entry names one


class TimedEntry(JournalEntry, frozen=True, kw_only=True):
    """An entry with its time, so that durations can be computed from the journal alone, on any machine."""

    recorded_at: str = ""
    """ISO 8601, set by the driver that records it; empty in journals of older versions."""
