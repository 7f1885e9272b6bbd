"""A finished span as a value. Knows no SDK: what is exported is decided before one is loaded."""

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

from msgspec import Struct, field

type AttributeValue = str | int | float | bool | tuple[str, ...]
type SpanKind = Literal["internal", "client", "server"]


class Span(Struct, frozen=True, kw_only=True):
    """One stretch of a run, from the entry that began it to the entry that closed it."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    is_parent_remote: bool = False
    """The parent is a span of another process, which exports it itself."""
    is_sampled: bool = True
    """False where the caller of the run said that its trace is not recorded."""
    name: str
    kind: SpanKind = "internal"
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])
    error: str = ""
    """`error.type`, where it failed."""

    @property
    def seconds(self) -> float:
        return max(0, self.end_ns - self.start_ns) / 1e9


class SpanExporter(Protocol):
    """Where finished spans go; `telemetry.otel.exporter` is the one of a host."""

    @property
    def endpoint(self) -> str: ...

    def export(self, spans: Iterable[Span], *, is_first: bool = True) -> int:
        """Hand spans on, and return how many are sent. Metrics count those that are exported for the first time."""
        ...

    def flush(self) -> bool:
        """False where something could not be sent in time."""
        ...

    def close(self) -> None:
        """Send what is left, for a bounded time."""
        ...
