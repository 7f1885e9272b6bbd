"""Follow the journal of a run while it is driven, and export each span when the entry that closes it is folded."""

import json
from collections.abc import Sequence

from metier.engine.entries import Entry
from metier.engine.tracing.span_fold import SpanFold
from metier.telemetry.otel import names
from metier.telemetry.otel.span import AttributeValue, Span, SpanExporter
from metier.telemetry.sinks import Cleaner


class RunTracer:
    """One run of this process. `entries` are those that are on record already."""

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
        """`again` sends what the entries closed before: a driver that was killed may not have sent it.

        Receivers know the spans by their ids.
        """
        self._fold = SpanFold(run_id, with_content=with_content)
        self._exporter = exporter
        self._cleaner = cleaner
        known = [span for entry in entries for span in self._fold.take(entry)]
        if again:
            exporter.export(map(self._clean, known), is_first=False)

    def take(self, entry: Entry) -> None:
        if closed := self._fold.take(entry):
            self._exporter.export([clean_span(span, self._cleaner) for span in closed])

    def find_context(self, key: str) -> str:
        return self._fold.find_context(key)

    def _clean(self, span: Span) -> Span:
        return clean_span(span, self._cleaner)


def clean_span(span: Span, cleaner: Cleaner) -> Span:
    """Names of tools and models come from outside too; content is cleaned value by value, so that it stays JSON."""
    text = cleaner.text
    known: dict[str, AttributeValue] = {}
    for name, value in span.attributes.items():
        if isinstance(value, str):
            known[name] = text(value) if name not in names.JSON_CONTENT else _clean_json(value, cleaner)
        else:
            known[name] = tuple(map(text, value)) if isinstance(value, tuple) else value
    # Built anew rather than copied: `replace` costs as much as all the rest.
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
