"""Export the spans of runs that are on record: of one run and of those that it handed work to."""

from metier.dataclass import dataclass
from metier.engine.journal import read_entries
from metier.engine.state import fold
from metier.engine.tracing.span_fold import SpanFold
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.host import Host
from metier.runtime.tracing.tracer import clean_span
from metier.store.base import Store
from metier.store.failures import RunUnknown
from metier.telemetry.otel.span import Span
from metier.telemetry.otel.switch import wants_content


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpans:
    """What a run and those below it come to as spans. One that is under way has only those that are closed."""

    trace_id: str
    runs: tuple[str, ...]
    spans: tuple[Span, ...]


async def build_run_spans(place: Host, store: Store, run_id: str) -> RunSpans:
    """The same spans with the same ids, whenever and wherever it is called. Raises `RunUnknown`."""
    cleaner = build_place_cleaner(place)
    with_content = wants_content(place.environ)
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
        waiting += [child.run_id for child in fold(current, entries).children if child.run_id not in runs]
    if not runs:
        raise RunUnknown(f"Run {run_id!r} has no journal", hint="`agent runs list` shows the runs of this workspace")
    return RunSpans(trace_id=trace_id, runs=tuple(runs), spans=tuple(spans))
