"""Open state, journal and event log of a run for the process that holds its lease."""

from collections.abc import Callable, Sequence
from pathlib import Path

from metier.dataclass import dataclass
from metier.engine.entries import Entry, RunFailed, RunFinished, RunPaused, RunStarted
from metier.engine.journal import RunLog, read_entries
from metier.engine.loop import Driver, open_log
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.host import Host
from metier.runtime.records.losses import check_journal
from metier.runtime.tracing.tracer import RunTracer
from metier.store.base import Lease
from metier.telemetry.jsonl import FILE_NAME, JsonlSink, LogPool
from metier.telemetry.otel.switch import wants_content
from metier.telemetry.otel.trace_context import build_trace_id
from metier.telemetry.sinks import Cleaner, EventWriter, FanOut, RunScope, Sink, get_redaction_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOpening:
    """Where the log of a run is, and who is told of it."""

    place: Host
    folder: Path
    pool: LogPool
    sinks: Sequence[Sink] = ()
    report: Callable[[str], None]
    accepts_loss: bool = False
    known: Sequence[Entry] = ()
    """The beginning of the journal, where it was read already: what another process added since is read now."""


async def open_run_log(lease: Lease, driver: Driver, opening: LogOpening) -> RunLog:
    place, run_id = opening.place, lease.run_id
    # The holder of the lease writes the log, even if a process that hangs still has it open.
    entries = [*opening.known, *await read_entries(driver.store, run_id, after=len(opening.known))]
    told = check_journal(opening.folder, run_id, entries, accepts_loss=opening.accepts_loss)
    jsonl = JsonlSink.open(
        opening.folder / FILE_NAME, clock=place.clock, take_over=True, is_checked=True, pool=opening.pool
    )
    fan_out = FanOut([jsonl, *place.sinks, *opening.sinks], report=opening.report)
    cleaner = build_place_cleaner(place)
    started = entries[0] if entries else None
    trace_id = started.trace_id if isinstance(started, RunStarted) else build_trace_id(run_id)
    mode = get_redaction_mode(place.settings.logging)
    writer = EventWriter(
        fan_out,
        cleaner,
        scope=RunScope(run_id=run_id, trace_id=trace_id, redaction_mode=mode),
        clock=place.clock,
        ids=place.ids,
        next_seq=jsonl.next_seq,
    )
    try:
        log = await open_log(lease, driver, writer, entries=entries, told=told)
    except BaseException:
        writer.close()
        raise
    log.tracer = _open_tracer(run_id, place, cleaner=cleaner, entries=entries)
    return log


def _open_tracer(run_id: str, place: Host, *, cleaner: Cleaner, entries: Sequence[Entry]) -> RunTracer | None:
    if place.traces is None:
        return None
    return RunTracer(
        run_id,
        place.traces,
        cleaner=cleaner,
        with_content=wants_content(place.environ),
        entries=entries,
        again=len(entries) > 1 and not _is_at_rest(entries[-1]),
    )


def _is_at_rest(last: Entry) -> bool:
    """The driver before this one stopped where a run may stop; otherwise it was killed, with spans not yet sent."""
    return isinstance(last, RunFinished | RunFailed) or (isinstance(last, RunPaused) and last.pause != "delegation")
