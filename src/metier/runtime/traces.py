"""Traces of runs: spans exported while a run is driven, or later from its journal.

OpenTelemetry is imported only if traces are enabled.
"""

import json
from collections.abc import Sequence

from msgspec import Struct

from metier.engine.entries.entry import Entry
from metier.engine.journal import read_entries
from metier.engine.state.fold import fold
from metier.engine.trace_spans import SpanFold
from metier.errors import UsageError
from metier.extras import hint_extra
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host
from metier.store.base import Store
from metier.store.failures import RunUnknown
from metier.telemetry import otel_names as names
from metier.telemetry.sinks import Cleaner
from metier.telemetry.tracing import AttributeValue, Span, SpanExporter, exports_metrics, is_on, wants_content


# Spans are built from journal entries. Open spans would be lost with their process, and a run may wait for days.
class RunTracer:
    """Exports the spans of one run that this process drives. `entries` are those already recorded."""

    def __init__(
        self,
        run_id: str,
        exporter: SpanExporter,
        *,
        cleaner: Cleaner,
        with_content: bool,
        entries: Sequence[Entry] = (),
        again: bool = False,
    ) -> None:
        """Build the spans of the recorded entries; with `again`, also export them.

        A killed driver may not have sent them. Receivers drop duplicates, because a span always has the same ID.
        """
        self._fold = SpanFold(run_id, with_content=with_content)
        self._exporter = exporter
        self._cleaner = cleaner
        known = [span for entry in entries for span in self._fold.take(entry)]
        if again:
            exporter.export((clean_span(span, cleaner) for span in known), is_first=False)

    def take(self, entry: Entry) -> None:
        if closed := self._fold.take(entry):
            self._exporter.export([clean_span(span, self._cleaner) for span in closed])

    def get_context(self, key: str) -> str:
        return self._fold.get_context(key)


def clean_span(span: Span, cleaner: Cleaner) -> Span:
    """Redact a span. Names of tools and models are outside text too. JSON is redacted by value, so it stays valid."""
    text = cleaner.text
    known: dict[str, AttributeValue] = {}
    for name, value in span.attributes.items():
        if isinstance(value, str):
            known[name] = text(value) if name not in names.JSON_CONTENT else _clean_json(value, cleaner)
        else:
            known[name] = tuple(map(text, value)) if isinstance(value, tuple) else value
    # A new object, because `replace` would take as long as the rest of this function.
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        is_parent_remote=span.is_parent_remote,
        is_sampled=span.is_sampled,
        name=text(span.name),
        kind=span.kind,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        attributes=known,
        error=text(span.error) if span.error else "",
    )


def _clean_json(value: str, cleaner: Cleaner) -> str:
    return json.dumps(cleaner.value(json.loads(value)), ensure_ascii=False)


def open_live_exporter(host: Host) -> SpanExporter | None:
    """Open the exporter; None if traces are off. A missing extra is reported and disables them."""
    if not is_on(host.environ):
        return None
    try:
        return open_exporter(host, with_metrics=exports_metrics(host.environ))
    except UsageError as error:
        host.report(f"{error.message}. {error.hint}")
        return None


def open_exporter(host: Host, *, with_metrics: bool = False) -> SpanExporter:
    """Open the exporter. Raises `UsageError` if the extra is not installed."""
    try:
        from metier.telemetry.otlp_exporter import OtlpExporter
    except ModuleNotFoundError as error:
        # Any other missing module is a bug, not a missing extra.
        if not (error.name or "").startswith("opentelemetry"):
            raise
        message = "Traces cannot be exported: OpenTelemetry is not installed"
        raise UsageError(message, hint=hint_extra("otel")) from error
    return OtlpExporter(with_metrics=with_metrics, report=host.report)


class RunSpans(Struct, frozen=True, kw_only=True):
    """The spans of a run and its child runs. For a run in progress, the finished spans."""

    trace_id: str
    runs: tuple[str, ...]
    spans: tuple[Span, ...]


async def build_run_spans(host: Host, store: Store, run_id: str) -> RunSpans:
    """Build the spans of a run. Their IDs derive from the run, so they are the same each time. Raises `RunUnknown`."""
    cleaner = build_host_cleaner(host)
    with_content = wants_content(host.environ)
    spans: list[Span] = []
    runs: list[str] = []
    trace_id = ""
    waiting = [run_id]
    while waiting:
        current = waiting.pop(0)
        entries = await read_entries(store, current)
        if not entries:
            continue
        folding = SpanFold(current, with_content=with_content)
        for entry in entries:
            spans += [clean_span(span, cleaner) for span in folding.take(entry)]
        runs.append(current)
        trace_id = trace_id or (folding.trace.trace_id if folding.trace else "")
        # A journal that was not written here may name a run as its own child.
        waiting += [child.run_id for child in fold(current, entries).children if child.run_id not in runs]
    if not runs:
        raise RunUnknown(
            f"Run {run_id!r} has no journal", hint="Run `agent runs list` to list the runs of this workspace"
        )
    return RunSpans(trace_id=trace_id, runs=tuple(runs), spans=tuple(spans))
