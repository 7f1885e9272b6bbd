"""W3C trace context: the `traceparent` header, and ids derived from a run. Pure."""

import hashlib
import re
from typing import Self

from msgspec import Struct

HEADER = "traceparent"
VARIABLE = "TRACEPARENT"
"""Environment variable for child processes and command lines."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MAX_CHARACTERS = 256
_SAMPLED = 1


class TraceParent(Struct, frozen=True):
    """The parent span of a run."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a header. Return None if it is invalid, as the standard requires."""
        found = _FORM.fullmatch(text.strip()) if len(text) <= _MAX_CHARACTERS else None
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        # The standard forbids version ff and ids of zeros. Only later versions may have more fields than version 00.
        if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, is_sampled=bool(int(flags, 16) & _SAMPLED))

    def render(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def build_trace_id(run_id: str) -> str:
    """Return the trace id of a run that is not part of a trace."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def build_span_id(run_id: str, name: str) -> str:
    """Return a span id that is the same in every process."""
    return hashlib.sha256(f"{run_id}/{name}".encode()).hexdigest()[:16]


def build_entry_id(run_id: str, entry: int, part: str = "") -> str:
    """Return the id of the span that starts with a journal entry."""
    return build_span_id(run_id, f"entry:{entry}{part}")
