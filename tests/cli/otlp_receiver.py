"""A small tracing backend that stores spans and metrics sent with OTLP over HTTP."""

import gzip
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

type Value = str | int | float | bool | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    name: str
    trace: str
    id: str
    parent: str
    kind: str
    start: int
    end: int
    error: str
    attributes: dict[str, Value]


@dataclass
class Receiver:
    url: str = ""
    spans: list[Received] = field(default_factory=list[Received])
    metrics: set[str] = field(default_factory=set[str])
    service: str = ""
    bodies: list[bytes] = field(default_factory=list[bytes])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Of the last request, with names in lower case."""

    def tree(self) -> list[str]:
        """Return every span as the path of its ancestors' names, in start order."""
        names = {span.id: span for span in self.spans}

        def path(span: Received) -> str:
            return f"{path(names[span.parent])} > {span.name}" if span.parent in names else span.name

        return [path(span) for span in sorted(self.spans, key=lambda span: (span.start, -span.end))]

    def find(self, name: str) -> Received:
        return next(span for span in self.spans if span.name == name)

    def forget(self) -> list[Received]:
        spans, self.spans = self.spans, []
        return spans


@contextmanager
def receiving() -> Generator[Receiver]:
    receiver = Receiver()

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.bodies.append(body)
            receiver.headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path == "/v1/traces":
                _take_spans(receiver, body)
            else:
                sent = ExportMetricsServiceRequest.FromString(body)
                scopes = (scope for resource in sent.resource_metrics for scope in resource.scope_metrics)
                receiver.metrics.update(metric.name for scope in scopes for metric in scope.metrics)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _take_spans(receiver: Receiver, body: bytes) -> None:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        receiver.service = str(_attributes(list(resource.resource.attributes)).get("service.name", ""))
        for scope in resource.scope_spans:
            receiver.spans += [_read(span) for span in scope.spans]


def _read(span: Span) -> Received:
    return Received(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        error=span.status.message if span.status.code == 2 else "",
        attributes=_attributes(list(span.attributes)),
    )


def _attributes(pairs: list[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Value:
    match value.WhichOneof("value"):
        case "int_value":
            return int(value.int_value)
        case "double_value":
            return float(value.double_value)
        case "bool_value":
            return bool(value.bool_value)
        case "array_value":
            return [item.string_value for item in value.array_value.values]
        case _:
            return str(value.string_value)
