"""Has the journal of a run lost entries? Its event log and its spool are written after it, so neither can be ahead.

A database whose last commits are gone (a damaged or shortened write-ahead log, an older copy) looks whole: what a run
left beside it is the only witness.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.execution.stepping import REPEATABLE, SPOOL
from metier.engine.loop import Told
from metier.event_record import EventRecord
from metier.events import StepStarted
from metier.runtime.records.run_folders import Shard, find_folder, is_run_id, iterate_folders
from metier.store.failures import StoreDamaged
from metier.telemetry.excerpt import cut_end
from metier.telemetry.jsonl import FILE_NAME, read_events, scan_events
from metier.tools.base import STARTED
from metier.tools.process.spool import LOST

_MOST_NAMED = 5
_LONGEST_CALL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a journal lacks of what the run left beside it."""

    ends_at: int
    """The last entry that the journal has."""
    told: int
    """The last entry that the event log tells of."""
    steps: tuple[str, ...]
    """Spool names of steps whose effect began in the lost entries and must not be repeated."""
    words: tuple[str, ...]
    """The same for a person."""

    def describe(self, run_id: str) -> StoreDamaged:
        missing = f"; its event log tells of entry {self.told}" if self.told > self.ends_at else ""
        steps = f"; begun and not on record: {'; '.join(self.words[:_MOST_NAMED])}" if self.words else ""
        return StoreDamaged(
            f"The journal of run {run_id!r} ends at entry {self.ends_at}{missing}{steps}. The run store lost its end",
            hint=(
                "Restore the run store from a backup. Or look whether these steps happened, then go on from entry "
                f"{self.ends_at} with `agent resume {run_id} --accept-loss`"
            ),
        )


def check_journal(folder: Path, run_id: str, entries: Sequence[e.Entry], *, accepts_loss: bool = False) -> Told:
    """Compare a journal with the event log and the spool of its folder. How far the log tells of it.

    Raises `StoreDamaged` where entries are missing, unless that is accepted: then the old log is set aside.
    """
    log = folder / FILE_NAME
    begun = Counter({entry.step_id: entry.attempt for entry in entries if isinstance(entry, e.StepStarted)})
    attempts, named = Counter(begun), dict[str, str]()
    events, told = 0, 0
    for entry, line in scan_events(log) if log.exists() else ():
        if entry > told:
            told, events = entry, 0
        events += entry == told > 0
        if entry > len(entries):
            named |= _name_lost_step(line, attempts)
    for note in _list_notes(folder):
        step_id, _, attempt = note.rpartition("-")
        if attempt.isdecimal() and int(attempt) > begun[step_id]:
            named.setdefault(note, f"step {step_id}, noted in the spool")
    if told <= len(entries) and not named:
        return Told(told, events)
    loss = Loss(ends_at=len(entries), told=told, steps=tuple(named), words=tuple(named.values()))
    if not accepts_loss:
        raise loss.describe(run_id)
    accept_loss(folder, loss)
    return Told()


def accept_loss(folder: Path, loss: Loss) -> None:
    """Keep the old event log aside, and leave a mark for each step that must be asked about when it comes up again."""
    log, spool = folder / FILE_NAME, folder / SPOOL
    if log.exists():
        log.replace(folder / f"events.lost-{loss.told}.jsonl")
    spool.mkdir(parents=True, exist_ok=True)
    for name in loss.steps:
        (spool / f"{name}{LOST}").touch()
        (spool / f"{name}{STARTED}").unlink(missing_ok=True)


def find_lost_run(runs: Path, name: str, *, shard: Shard) -> Path | None:
    """The folder of a run that the store does not know: by its id, the beginning of it, or the newest for `latest`."""
    if is_run_id(name):
        found = [find_folder(runs, name, shard=shard)]
    else:
        prefix = "" if name == "latest" else name
        found = sorted(
            (folder for folder in iterate_folders(runs) if folder.name.startswith(prefix)), key=lambda each: each.name
        )
    # A start that was killed leaves an empty folder; a run that existed has told of it.
    return next((folder for folder in reversed(found) if (folder / FILE_NAME).exists()), None)


def describe_lost_run(folder: Path) -> StoreDamaged:
    told = max((record.entry for record in read_events(folder / FILE_NAME)), default=0)
    return StoreDamaged(
        f"Run {folder.name!r} is not in the run store, but its folder is there and tells of {told} entries: '{folder}'",
        hint="Restore the database and its -wal file from a backup; if you deleted the run, delete the folder too",
    )


def _name_lost_step(line: bytes, attempts: Counter[str]) -> dict[str, str]:
    """Spool name and words of the step whose effect this event tells of, if it must not be repeated."""
    try:
        payload = EventRecord.model_validate_json(line).payload
    except ValidationError:
        return {}
    if not isinstance(payload, StepStarted) or payload.effect in REPEATABLE:
        return {}
    attempts[payload.step_id] += 1
    call = cut_end(f"{payload.tool or payload.action} {payload.arguments}", _LONGEST_CALL)
    return {f"{payload.step_id}-{attempts[payload.step_id]}": f"step {payload.step_id}, {call}"}


def _list_notes(folder: Path) -> list[str]:
    try:
        names = os.listdir(f"{folder}/{SPOOL}")  # noqa: PTH208  text, not paths: each run asks
    except OSError:
        return []
    return sorted(name.removesuffix(STARTED) for name in names if name.endswith(STARTED))
