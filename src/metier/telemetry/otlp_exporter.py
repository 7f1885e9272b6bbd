"""The adapter to the OpenTelemetry SDK. Only this module imports it, and it is only loaded if traces are exported.

The SDK gets finished spans with their own ids and times. Its `OTEL_*` variables configure batching, retries,
compression, headers, sampling and the resource.
"""

import logging
import os
from collections.abc import Callable, Iterable
from threading import Thread
from time import monotonic
from typing import override

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation import set_span_in_context

from metier.telemetry import otel_names as names
from metier.telemetry.excerpt import one_line
from metier.telemetry.tracing import Span
from metier.version import __version__

FLUSH_SECONDS = 5.0
"""Time limit for the last export when a command ends."""
_QUOTED_CHARACTERS = 120
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
_SCOPE = InstrumentationScope(names.SCOPE, __version__, names.SCHEMA_URL)


class _ExportFailures(logging.Handler):
    """Reports the first failed export. The SDK only logs failures and raises nothing."""

    def __init__(self, endpoint: str, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._report = report
        self.has_failed = False

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if not self.has_failed:
            self.has_failed = True
            reason = one_line(record.getMessage(), _QUOTED_CHARACTERS)
            self._report(f"Traces are not exported to {self._endpoint}: {reason}")


def _get_endpoint() -> str:
    """Return the address for traces, or the path for traces under the common address, as the specification says."""
    common = os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or "http://localhost:4318"
    return os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or f"{common.removesuffix('/')}/v1/traces"


class OtlpExporter:
    """Sends spans, and metrics computed from them, to the endpoint of the environment."""

    def __init__(self, *, with_metrics: bool, report: Callable[[str], None]) -> None:
        logger = logging.getLogger("opentelemetry")
        # The SDK logs every failed attempt. The user gets one line about the first.
        logger.propagate = False
        logger.addHandler(logging.NullHandler())  # without a handler, messages after closing would go to stderr
        self._resource = _build_resource()
        # The provider is only created for its sampler, which it configures from the environment.
        self._sampler: Sampler = TracerProvider(shutdown_on_exit=False).sampler
        self.endpoint = _get_endpoint()
        self._exporter = OTLPSpanExporter(endpoint=self.endpoint)
        self._failures = _ExportFailures(self.endpoint, report)
        logger.addHandler(self._failures)
        self._spans = BatchSpanProcessor(self._exporter)
        self._metrics = Metrics(self._resource) if with_metrics else None

    def export(self, spans: Iterable[Span], *, is_first: bool = True) -> int:
        """Export spans and return the number of sampled ones. Metrics only count spans exported for the first time."""
        sampled = [span for span in spans if self._is_sampled(span)]
        for span in sampled:
            # The SDK's tracer chooses IDs itself, so its processor gets finished spans.
            self._spans.on_end(build_span(span, self._resource))
            if is_first and self._metrics is not None:
                self._metrics.add(span)
        return len(sampled)

    def flush(self) -> bool:
        """Export everything. Return False if that failed or took too long."""
        return _within(FLUSH_SECONDS, self._spans.force_flush) and not self._failures.has_failed

    def close(self) -> None:
        """Export the rest within a time limit. Closing twice is allowed."""
        flushes = [self._spans.force_flush, *([self._metrics.flush] if self._metrics is not None else [])]
        # After a failure there is no wait, or every command would end late while the endpoint is down.
        if not _within(0 if self._failures.has_failed else FLUSH_SECONDS, *flushes):
            self._exporter.shutdown()  # interrupts the pauses between retries
        _within(1.0, self._spans.shutdown, *([self._metrics.close] if self._metrics is not None else []))
        logging.getLogger("opentelemetry").removeHandler(self._failures)

    def _is_sampled(self, span: Span) -> bool:
        parent = None
        if span.parent_id:
            parent_span = NonRecordingSpan(_context(span.trace_id, span.parent_id, is_sampled=span.is_sampled))
            parent = set_span_in_context(parent_span)
        found = self._sampler.should_sample(parent, int(span.trace_id, 16), span.name, _KINDS[span.kind])
        return found.decision == Decision.RECORD_AND_SAMPLE


class Metrics:
    """The histograms of the GenAI conventions, computed from finished spans."""

    def __init__(self, resource: Resource) -> None:
        self._exporter = OTLPMetricExporter()
        reader = PeriodicExportingMetricReader(self._exporter)
        # `close` ends it within a second. The SDK's own exit handler would wait for up to 30.
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter(names.SCOPE, __version__, names.SCHEMA_URL)

        def histogram(name: str, unit: str, buckets: Iterable[float]) -> Histogram:
            created = meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=list(buckets))
            assert isinstance(created, Histogram)
            return created

        self._durations = {
            operation: histogram(name, "s", names.DURATION_BUCKETS)
            for operation, name in (
                (names.CHAT, names.OPERATION_DURATION),
                (names.EXECUTE_TOOL, names.TOOL_DURATION),
                (names.INVOKE_AGENT, names.AGENT_DURATION),
                (names.INVOKE_WORKFLOW, names.WORKFLOW_DURATION),
            )
        }
        self._tokens = histogram(names.TOKEN_USAGE, "{token}", names.TOKEN_BUCKETS)

    def add(self, span: Span) -> None:
        operation = str(span.attributes.get(names.OPERATION, ""))
        shared = {name: span.attributes[name] for name in _DIMENSIONS if name in span.attributes}
        if (duration := self._durations.get(operation)) is not None:
            duration.record(span.seconds, shared)
        if operation == names.CHAT:
            for kind, name in (("input", names.INPUT_TOKENS), ("output", names.OUTPUT_TOKENS)):
                if isinstance(count := span.attributes.get(name), int):
                    self._tokens.record(count, {**shared, names.TOKEN_TYPE: kind})

    def flush(self) -> bool:
        return self._provider.force_flush(FLUSH_SECONDS * 1000)

    def close(self) -> None:
        self._provider.shutdown(1000)


_DIMENSIONS = (
    names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.TOOL_NAME, names.AGENT_NAME,
    names.WORKFLOW_NAME, names.ERROR_TYPE,
)  # fmt: skip
"""Attributes with few values: a metric must not have one time series per run."""


def _within(seconds: float, *works: Callable[[], object]) -> bool:
    """Run functions in parallel. Return False if they take longer."""
    # The SDK's own time limits don't apply while it retries.
    threads = [Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    until = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _build_resource() -> Resource:
    """Build the resource from the environment, with our name as the default service name."""
    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": names.SCOPE}))
    return resource


def build_span(span: Span, resource: Resource) -> ReadableSpan:
    is_remote = span.is_parent_remote
    parent = _context(span.trace_id, span.parent_id, is_remote=is_remote) if span.parent_id else None
    return ReadableSpan(
        span.name,
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        resource=resource,
        attributes=dict(span.attributes),
        kind=_KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: str, span_id: str, *, is_sampled: bool = True, is_remote: bool = False) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=is_remote, trace_flags=flags)
