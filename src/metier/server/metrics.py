"""Counters and histograms of one server process, in the text format of Prometheus."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metier.events.record import EventRecord
from metier.events.run import RunFailed, RunFinished

HTTP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
RUN_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)


class Histogram(Struct):
    name: str
    help: str
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list[int])
    """One per bound, plus one for larger values."""
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        # Left, because `le` includes the bound itself.
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def render(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        seen = 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            seen += count
            yield f'{self.name}_bucket{{le="{"+Inf" if bound is None else f"{bound:g}"}"}} {seen}'
        yield f"{self.name}_sum {self.total:.6f}"
        yield f"{self.name}_count {seen}"


class ServerMetrics(Struct):
    """Metrics of this process, updated by the middleware and by the server's event sink."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By method and status class."""
    request_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "metier_http_request_duration_seconds", "Time until the response starts.", HTTP_SECONDS
        )
    )
    ended: Counter[str] = field(default_factory=Counter[str])
    run_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "metier_run_duration_seconds", "Time from the start of a run to its end, waits included.", RUN_SECONDS
        )
    )

    def count_event(self, record: EventRecord) -> None:
        if isinstance(record.payload, RunFinished | RunFailed):
            self.ended[record.payload.status] += 1
            self.run_seconds.observe(record.payload.duration_ms / 1000)

    def render(self) -> Iterator[str]:
        requests = {
            f'{{method="{method}",status="{status}"}}': n for (method, status), n in sorted(self.requests.items())
        }
        ended = {f'{{status="{status}"}}': count for status, count in sorted(self.ended.items())}
        yield from render_metric("metier_http_requests_total", "Requests that this process answered.", requests)
        yield from self.request_seconds.render()
        yield from render_metric("metier_runs_ended_total", "Runs that this process drove to their end.", ended)
        yield from self.run_seconds.render()


def render_metric(name: str, text: str, samples: Mapping[str, object], *, kind: str = "counter") -> Iterator[str]:
    """Render a metric. `samples` has the values by their labels, written as `{name="value"}`."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples.items():
        yield f"{name}{labels} {value}"


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class MetricsMiddleware:
    """Counts requests and measures the time until the response starts. Event streams stay open for hours."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        # Clients can send any method. Unknown ones share a label, which bounds the number of series.
        method = scope["method"] if scope["method"] in _METHODS else "other"

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests[method, f"{message['status'] // 100}xx"] += 1
                self._metrics.request_seconds.observe(time.monotonic() - began)
            await send(message)

        await self._app(scope, receive, count)
