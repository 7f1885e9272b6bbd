"""Open the exporter of a host where its environment asks for one. Off, nothing of OpenTelemetry is imported."""

from metier.errors import UsageError
from metier.extras import hint_extra
from metier.runtime.host import Host
from metier.telemetry.otel.span import SpanExporter
from metier.telemetry.otel.switch import exports_metrics, is_on


def open_live_exporter(place: Host) -> SpanExporter | None:
    """None where traces are off, or where the extra is not installed, which is reported."""
    if not is_on(place.environ):
        return None
    try:
        return open_exporter(place, with_metrics=exports_metrics(place.environ))
    except UsageError as error:
        place.report(f"{error.message}. {error.hint}")
        return None


def open_exporter(place: Host, *, with_metrics: bool = False) -> SpanExporter:
    """Raises `UsageError` where the extra is not installed."""
    try:
        from metier.telemetry.otel.exporter import OtlpExporter
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        message = "Traces cannot be exported: OpenTelemetry is not installed"
        raise UsageError(message, hint=hint_extra("otel")) from error
    return OtlpExporter(with_metrics=with_metrics, report=place.report)
