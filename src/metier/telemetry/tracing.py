"""Traces: the W3C `traceparent` header, ids derived from a run, finished spans, and the `OTEL_*` variables.

Imports no SDK, so that disabled traces cost nothing. `otlp_exporter` has the SDK.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, Self

from msgspec import Struct, field

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
    # 16 bytes in hexadecimal digits, as the standard requires.
    return hashlib.sha256(run_id.encode()).hexdigest()[:32]


def build_span_id(run_id: str, name: str) -> str:
    """Return a span id that is the same in every process."""
    return hashlib.sha256(f"{run_id}/{name}".encode()).hexdigest()[:16]


def build_entry_id(run_id: str, entry: int, part: str = "") -> str:
    """Return the id of the span that starts with a journal entry."""
    return build_span_id(run_id, f"entry:{entry}{part}")


type AttributeValue = str | int | float | bool | tuple[str, ...]
type SpanKind = Literal["internal", "client", "server"]


class Span(Struct, frozen=True, kw_only=True):
    """A part of a run between two journal entries."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    is_parent_remote: bool = False
    """True if another process exports the parent."""
    is_sampled: bool = True
    """False if the caller of the run doesn't record its trace."""
    name: str
    kind: SpanKind = "internal"
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])
    error: str = ""
    """The value of `error.type`; empty if it succeeded."""

    @property
    def seconds(self) -> float:
        return max(0, self.end_ns - self.start_ns) / 1e9


class SpanExporter(Protocol):
    """A destination for finished spans, such as `telemetry.otlp_exporter`."""

    @property
    def endpoint(self) -> str: ...

    def export(self, spans: Iterable[Span], *, is_first: bool = True) -> int:
        """Export spans and return the number sent. Metrics only count spans exported for the first time."""
        ...

    def flush(self) -> bool:
        """Export everything. Return False if that failed or took too long."""
        ...

    def close(self) -> None:
        """Export the rest within a time limit."""
        ...


ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_METRIC_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON_SPANS = ("span_only", "span_and_event", "true")


def is_on(environ: Mapping[str, str]) -> bool:
    """Return True if an endpoint or the exporter `otlp` is configured: without either, nothing leaves the machine."""
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_disabled and _uses_otlp(environ, "OTEL_TRACES_EXPORTER", ENDPOINTS)


def exports_metrics(environ: Mapping[str, str]) -> bool:
    return _uses_otlp(environ, "OTEL_METRICS_EXPORTER", _METRIC_ENDPOINTS)


def wants_content(environ: Mapping[str, str]) -> bool:
    """Return True if prompts, replies, arguments and results should also be exported."""
    return environ.get(CAPTURE, "").strip().lower() in _ON_SPANS


def _uses_otlp(environ: Mapping[str, str], variable: str, endpoints: tuple[str, ...]) -> bool:
    # The specification's default is `otlp` at localhost. An endpoint counts as consent here; no variable does not.
    exporters = environ.get(variable, "").strip().lower()
    if exporters:
        return "otlp" in [name.strip() for name in exporters.split(",")]
    return any(environ.get(name, "").strip() for name in endpoints)
