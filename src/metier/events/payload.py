"""The base of every event payload. Pure values; `events.record` carries them.

Events report to people and machines what a run did. They are a projection: nothing reads them to decide what happens
next. Adding a field with a default is compatible; anything else raises `events.record.SCHEMA_VERSION`.
"""

from typing import ClassVar

from metier.values import StoredValue


class Payload(StoredValue, frozen=True, kw_only=True):
    """The payload of one event type. Subclasses set their `event_type`; the class docstring is its documentation."""

    # A class variable, not a tag of msgspec: the record that carries the payload also has its type.
    event_type: ClassVar[str]
