"""W3C trace context: read and write `traceparent`, and the ids that follow from a run. Pure."""

import hashlib
import re
from typing import Self

from msgspec import Struct

HEADER = "traceparent"
VARIABLE = "TRACEPARENT"
"""How child processes get it, and how a command line takes it."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MAX_CHARACTERS = 256
_SAMPLED = 1


class TraceParent(Struct, frozen=True):
    """The span that something happens in."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What a header says; None for anything that is not one, as the standard asks."""
        found = _FORM.fullmatch(text.strip()) if len(text) <= _MAX_CHARACTERS else None
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, is_sampled=bool(int(flags, 16) & _SAMPLED))

    def render(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def build_trace_id(run_id: str) -> str:
    """The trace that a run begins, where it is part of none."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def build_span_id(run_id: str, name: str) -> str:
    """The same in whichever process, on whichever machine, however often it is built."""
    return hashlib.sha256(f"{run_id}/{name}".encode()).hexdigest()[:16]


def build_entry_id(run_id: str, entry: int, part: str = "") -> str:
    """The span that the entry with this number begins."""
    return build_span_id(run_id, f"entry:{entry}{part}")
