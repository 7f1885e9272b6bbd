"""Finished spans as values, independent of the SDK."""

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

from msgspec import Struct, field

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
    """A destination for finished spans, such as `telemetry.otel.exporter`."""

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
