"""The log of a run: state, journal and events, opened by the lease holder and checked for lost entries."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from metier import events
from metier.engine.entries.entry import Entry
from metier.engine.entries.run import RunFailed, RunFinished, RunPaused, RunStarted
from metier.engine.entries.step import StepStarted
from metier.engine.execution.step_execution import REPEATABLE, SPOOL
from metier.engine.journal import RunLog, read_entries
from metier.engine.loop import Driver, LogPosition, open_log
from metier.engine.projection import project
from metier.engine.services import Services
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.events.record import parse_record
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host
from metier.runtime.records.run_folders import Shard, get_folder, is_run_id, iterate_folders
from metier.runtime.traces import RunTracer
from metier.store.backend import get_max_unflushed
from metier.store.base import Lease
from metier.store.failures import StoreDamaged
from metier.telemetry.excerpt import cut_end
from metier.telemetry.jsonl import FILE_NAME, JsonlSink, LogPool, read_events, scan_events
from metier.telemetry.sinks import Cleaner, EventWriter, FanOut, RunScope, Sink, get_redaction_mode
from metier.telemetry.tracing import build_trace_id, wants_content
from metier.tools.base import STARTED
from metier.tools.process.spool import LOST

_MAX_NAMED = 5
_MAX_CALL_LENGTH = 100

_REPEATABLE = (
    events.RunResumed
    | events.SkillCatalogLoaded
    | events.SkillLoadFailed
    | events.SkillProblemFound
    | events.SkillPrefilterCompleted
    | events.SkillDisclosureLoaded
    | events.SkillInvocationStarted
    | events.SkillInvocationFinished
    | events.Handoff
    | events.LlmDecisionDecoded
    | events.LlmDecisionRejected
    | events.CallRefused
    | events.SkillStepExecuted
    | events.ArtifactWritten
    | events.PlanUpdated
    | events.StepRetryScheduled
    | events.TaskPlanned
    | events.TaskStepChanged
    | events.ResultChecked
)
"""Events of entries that a crashed database server may lose; see `needs_flush`."""


# A database that lost its last commits (a damaged write-ahead log, an older copy) looks complete. The event log and the
# spool are always written after the journal, so entries that only they mention must have been lost.
class Loss(Struct, frozen=True, kw_only=True):
    """Entries that the journal lost, according to the run's event log and spool."""

    ends_at: int
    """Number of the journal's last entry."""
    told: int
    """Number of the last entry in the event log."""
    steps: tuple[str, ...]
    """Spool names of steps that the lost entries started and that must not be repeated."""
    words: tuple[str, ...]
    """Descriptions of the lost steps for the user."""

    def describe(self, run_id: str) -> StoreDamaged:
        missing = f"; its event log tells of entry {self.told}" if self.told > self.ends_at else ""
        steps = f"; begun and not on record: {'; '.join(self.words[:_MAX_NAMED])}" if self.words else ""
        return StoreDamaged(
            f"The journal of run {run_id!r} ends at entry {self.ends_at}{missing}{steps}. The run store lost its end",
            hint=(
                "Restore the run store from a backup. Or check whether these steps happened, then continue from entry "
                f"{self.ends_at} with `agent resume {run_id} --accept-loss`"
            ),
        )


def check_journal(
    folder: Path, run_id: str, entries: Sequence[Entry], *, accepts_loss: bool = False, max_unflushed: int = 0
) -> LogPosition:
    """Compare a journal with the event log and spool of its folder, and return the position of the log.

    Raises `StoreDamaged` if entries are missing, unless the user accepts the loss; then the old log is set aside.
    A loss of at most `max_unflushed` entries is accepted if the run repeats all of them.
    """
    log = folder / FILE_NAME
    started = Counter({entry.step_id: entry.attempt for entry in entries if isinstance(entry, StepStarted)})
    attempts, named = Counter(started), dict[str, str]()
    count, told = 0, 0
    is_repeatable = True
    for entry, line in scan_events(log) if log.exists() else ():
        if entry > told:
            told, count = entry, 0
        # Informational events have entry 0 and are not counted.
        count += entry == told > 0
        if entry > len(entries):
            lost = _parse_payload(line)
            named |= _name_lost_step(lost, attempts)
            is_repeatable &= is_repeated(lost)
    for note in _list_notes(folder):
        step_id, _, attempt = note.rpartition("-")
        if attempt.isdecimal() and int(attempt) > started[step_id]:
            named.setdefault(note, f"step {step_id}, noted in the spool")
    if told <= len(entries) and not named:
        return LogPosition(told, count)
    loss = Loss(ends_at=len(entries), told=told, steps=tuple(named), words=tuple(named.values()))
    # A crashed database server loses entries that were not flushed. The driver writes them again, unless it died too.
    # Any other loss has another cause, such as an older copy of the database: an answer of the user may be missing.
    is_repeatable &= not named and told - len(entries) <= max_unflushed
    if not (accepts_loss or is_repeatable):
        raise loss.describe(run_id)
    accept_loss(folder, loss)
    return LogPosition()


def accept_loss(folder: Path, loss: Loss) -> None:
    """Set the old event log aside, and mark each lost step so that the user is asked before it runs again."""
    log, spool = folder / FILE_NAME, folder / SPOOL
    spool.mkdir(parents=True, exist_ok=True)
    for name in loss.steps:
        (spool / f"{name}{LOST}").touch()
        (spool / f"{name}{STARTED}").unlink(missing_ok=True)
    # Last, because only this log tells of the lost steps: after a crash before this line, the user is asked again.
    if log.exists():
        log.replace(folder / f"events.lost-{loss.told}.jsonl")


def find_lost_run(runs: Path, name: str, *, shard: Shard) -> Path | None:
    """Return the folder of a run by ID or prefix, or the newest for `latest`, to report one missing from the store."""
    if is_run_id(name):
        found = [get_folder(runs, name, shard=shard)]
    else:
        prefix = "" if name == "latest" else name
        found = sorted(
            (folder for folder in iterate_folders(runs) if folder.name.startswith(prefix)), key=lambda each: each.name
        )
    # A start that was killed leaves an empty folder. A run that existed has an event log.
    return next((folder for folder in reversed(found) if (folder / FILE_NAME).exists()), None)


def describe_lost_run(folder: Path) -> StoreDamaged:
    told = max((record.entry for record in read_events(folder / FILE_NAME)), default=0)
    return StoreDamaged(
        f"Run {folder.name!r} is not in the run store, but its folder is there and tells of {told} entries: '{folder}'",
        hint="Restore the database and its -wal file from a backup; if you deleted the run, delete the folder too",
    )


def is_repeated(payload: events.Payload | None) -> bool:
    """Return True if a run that lost this event's entry repeats it. An unknown event may be anything."""
    if isinstance(payload, events.StepStarted):
        return payload.effect == "read"
    return isinstance(payload, _REPEATABLE)


def _parse_payload(line: bytes) -> events.Payload | None:
    try:
        return parse_record(line).payload
    except ValueError:
        return None


def _name_lost_step(payload: events.Payload | None, attempts: Counter[str]) -> dict[str, str]:
    """Return the spool name and description of this event's step, if it must not be repeated."""
    if not isinstance(payload, events.StepStarted) or payload.effect in REPEATABLE:
        return {}
    attempts[payload.step_id] += 1
    call = cut_end(f"{payload.tool or payload.action} {payload.arguments}", _MAX_CALL_LENGTH)
    return {f"{payload.step_id}-{attempts[payload.step_id]}": f"step {payload.step_id}, {call}"}


def _list_notes(folder: Path) -> list[str]:
    try:
        names = os.listdir(f"{folder}/{SPOOL}")  # noqa: PTH208  text, not paths: each run asks
    except OSError:
        return []
    return sorted(name.removesuffix(STARTED) for name in names if name.endswith(STARTED))


class LogOpening(Struct, frozen=True, kw_only=True):
    """Options for opening the log of a run: its location and sinks."""

    host: Host
    folder: Path
    pool: LogPool
    sinks: Sequence[Sink] = ()
    report: Callable[[str], None]
    accepts_loss: bool = False
    first_sinks: Sequence[Sink] = ()
    """Sinks that get an event before it is written to the log."""
    known: Sequence[Entry] = ()
    """First entries of the journal, if already read. Entries that another process added since are read now."""


async def open_run_log(lease: Lease, driver: Driver, opening: LogOpening) -> RunLog:
    host, run_id = opening.host, lease.run_id
    # The lease holder may write the log even if a hanging process still has it open, hence `take_over` below.
    entries = [*opening.known, *await read_entries(driver.store, run_id, after=len(opening.known))]
    told = check_journal(
        opening.folder,
        run_id,
        entries,
        accepts_loss=opening.accepts_loss,
        max_unflushed=get_max_unflushed(host.settings.store),
    )
    jsonl = JsonlSink.open(
        opening.folder / FILE_NAME, clock=host.clock, take_over=True, is_checked=True, pool=opening.pool
    )
    fan_out = FanOut([*opening.first_sinks, jsonl, *host.sinks, *opening.sinks], report=opening.report)
    cleaner = build_host_cleaner(host)
    started = entries[0] if entries else None
    trace_id = started.trace_id if isinstance(started, RunStarted) else build_trace_id(run_id)
    mode = get_redaction_mode(host.settings.logging)
    writer = EventWriter(
        fan_out,
        cleaner,
        scope=RunScope(run_id=run_id, trace_id=trace_id, redaction_mode=mode),
        clock=host.clock,
        ids=host.ids,
        next_seq=jsonl.next_seq,
    )
    try:
        log = await open_log(lease, driver, writer, entries=entries, position=told)
    # Also on a cancellation, because the writer holds the lock of the log.
    except BaseException:
        writer.close()
        raise
    log.tracer = _open_tracer(run_id, host, cleaner=cleaner, entries=entries)
    return log


def _open_tracer(run_id: str, host: Host, *, cleaner: Cleaner, entries: Sequence[Entry]) -> RunTracer | None:
    if host.traces is None:
        return None
    return RunTracer(
        run_id,
        host.traces,
        cleaner=cleaner,
        with_content=wants_content(host.environ),
        entries=entries,
        again=len(entries) > 1 and not _is_at_rest(entries[-1]),
    )


def _is_at_rest(last: Entry) -> bool:
    """Return True if the previous driver stopped cleanly. A killed one may not have exported its spans."""
    return isinstance(last, RunFinished | RunFailed) or (isinstance(last, RunPaused) and last.pause != "delegation")


class JournalReplayer:
    """Folds a growing journal and emits its events, without informational ones, which are in no journal."""

    def __init__(self, host: Host, run_id: str, sink: Sink) -> None:
        self.state = RunState(run_id)
        self._host = host
        self._sink = sink
        self._writer: EventWriter | None = None

    def tell(self, entries: Iterable[Entry]) -> int:
        """Emit the events of the next entries with the current time, and return their number."""
        count = 0
        for entry in entries:
            apply(self.state, entry)
            self._writer = self._writer or self._open()
            for payload in project(entry, self.state):
                self._writer.emit(payload, entry=self.state.seq, turn=self.state.turn, skill=self.state.skill)
                count += 1
        return count

    def close(self) -> None:
        self._sink.close()

    def _open(self) -> EventWriter:
        started = self.state.started
        assert started is not None, "a journal begins with the start of its run"
        mode = get_redaction_mode(self._host.settings.logging)
        scope = RunScope(run_id=self.state.run_id, trace_id=started.trace_id, redaction_mode=mode)
        cleaner = build_host_cleaner(self._host)
        return EventWriter(self._sink, cleaner, scope=scope, clock=self._host.clock, ids=self._host.ids)


def report_truncated_layers(log: RunLog, services: Services) -> None:
    """Emit events for files of the prompt that exceed their layer's limit."""
    for layer, source in services.instructions.sources.items():
        if source.left_out:
            log.emit(events.PromptLayerCut(layer=layer, source=source.file, left_out_characters=source.left_out))
