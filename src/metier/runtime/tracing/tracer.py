"""Follow the journal of a run while it is driven, and export each span when the entry that closes it is folded."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from metier.engine.entries import Entry
from metier.engine.tracing.span_fold import SpanFold
from metier.telemetry.otel import names
from metier.telemetry.otel.span import AttributeValue, Span
from metier.telemetry.sinks import Cleaner


class SpanExporter(Protocol):
    """Where finished spans go; `telemetry.otel.exporter` is the one of a host."""

    def export(self, spans: Iterable[Span], *, is_first: bool = True) -> int: ...


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

    def clean(name: str, value: AttributeValue) -> AttributeValue:
        match value:
            case str() if name in names.CONTENT and name != names.TOOL_RESULT:
                return json.dumps(cleaner.value(json.loads(value)), ensure_ascii=False)
            case str():
                return cleaner.text(value)
            case tuple():
                return tuple(map(cleaner.text, value))
            case _:
                return value

    known = {name: clean(name, value) for name, value in span.attributes.items()}
    return replace(span, name=cleaner.text(span.name), error=cleaner.text(span.error), attributes=known)
