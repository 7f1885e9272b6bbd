"""The `OTEL_*` variables that enable traces and metrics. Imports no SDK, so that disabled traces cost nothing."""

from collections.abc import Mapping

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_METRIC_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON_SPANS = ("span_only", "span_and_event", "true")


def is_on(environ: Mapping[str, str]) -> bool:
    """Return True if an endpoint or the exporter `otlp` is configured: without either, nothing leaves the machine."""
    if _is_true(environ, "OTEL_SDK_DISABLED"):
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporters:
        return "otlp" in [name.strip() for name in exporters.split(",")]
    return any(environ.get(name, "").strip() for name in ENDPOINTS)


def exports_metrics(environ: Mapping[str, str]) -> bool:
    exporters = environ.get("OTEL_METRICS_EXPORTER", "").strip().lower()
    if exporters:
        return "otlp" in [name.strip() for name in exporters.split(",")]
    return any(environ.get(name, "").strip() for name in _METRIC_ENDPOINTS)


def wants_content(environ: Mapping[str, str]) -> bool:
    """Return True if prompts, replies, arguments and results should also be exported."""
    return environ.get(CAPTURE, "").strip().lower() in _ON_SPANS


def _is_true(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() == "true"
