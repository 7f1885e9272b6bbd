"""Export of runs, redacted or exact, and import into another workspace."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, cast

from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.definitions.names import SKILL_PIN as SKILL
from metier.engine.entries.entry import Entry, parse_entry, render_entry
from metier.engine.entries.run import ModelChanged, RunAdopted, RunStarted
from metier.engine.entries.skill import ContextDisclosed
from metier.engine.execution.approval_requests import render_call
from metier.engine.journal import read_entries, store_entries
from metier.engine.replay.recorded_store import RecordedStore
from metier.engine.replay.recording import Recording
from metier.engine.replay.replay import replay
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.events.payload import Payload
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.delegation.authority import ORIGIN_PREFIX, PARENT_PREFIX, START
from metier.runtime.history.archive import Archive, list_digests
from metier.runtime.history.replays import build_replay_services, get_start
from metier.runtime.host import Host
from metier.runtime.records.pins import AGENT, POLICY
from metier.runtime.records.record import FILE_NAME as RECORD_FILE
from metier.runtime.records.record import build_row
from metier.runtime.records.signatures import unseal
from metier.runtime.runs import Runtime
from metier.runtime.workspace.skill_catalog import get_skills
from metier.runtime.workspace.tasks import TASK
from metier.store.base import ApprovalRow, RunRow
from metier.store.failures import BlobUnknown, RunExists
from metier.telemetry.jsonl import FILE_NAME as EVENTS_FILE
from metier.telemetry.sinks import Cleaner

type BlobKind = Literal["entry", "json", "text"]


async def export_run(runtime: Runtime, run_id: str, *, exact: bool = False) -> Archive:
    """Export everything stored about a run and its child runs. Unless `exact`, secrets are redacted.

    A redacted journal still folds and replays, because hashes of redacted texts are computed again. Raises `UsageError`
    if the run would behave differently without a secret.
    """
    archive = await _export_one(runtime, run_id, exact=exact)
    children: dict[str, Archive] = {}
    waiting = [archive]
    while waiting:
        for child in waiting.pop().fold().children:
            # A child that has not started is requested again by the next driver of its parent.
            if child.run_id not in children and await read_entries(runtime.store, child.run_id):
                children[child.run_id] = await _export_one(runtime, child.run_id, exact=exact)
                waiting.append(children[child.run_id])
    return replace(archive, children=tuple(children[run_id] for run_id in sorted(children)))


async def relocate_run(archive: Archive, runtime: Runtime, *, moved: Mapping[str, str], base: str) -> Archive:
    """Rename folders in a run, so that it reveals nothing about its machine.

    Truncated names are renamed too, if they extend beyond the folder `base`. The result has no event log and no record,
    which can be rebuilt from the journal. Raises `UsageError` if the run would behave differently with the new names.
    """
    children = tuple(
        [await relocate_run(replace(child, children=()), runtime, moved=moved, base=base) for child in archive.children]
    )
    # A truncated text can end within the name of a folder.
    cut = {
        old[:length]: new
        for old, new in moved.items()
        if len(base) > 1 and old.startswith(base)
        for length in range(len(base) + 2, len(old))
    }
    # Longest first, or a folder's prefix would be replaced before the folder itself.
    order = sorted((cut | dict(moved)).items(), key=lambda item: -len(item[0]))
    blobs: dict[str, bytes] = {}
    renamed: dict[str, str] = {}
    for digest, data in archive.blobs.items():
        new = _move(data, order)
        name = hashlib.sha256(new).hexdigest()
        blobs[name] = new
        renamed |= {digest: name} if name != digest else {}
    entries = tuple(_rename(parse_entry(_move(render_entry(entry), order)), renamed) for entry in archive.entries)
    if entries != archive.entries:
        entries = await _derive(archive.run_id, entries, blobs, runtime=runtime)
    return replace(archive, entries=entries, blobs=blobs, record=b"", events=b"", children=children)


def _move(data: bytes, moved: Sequence[tuple[str, str]]) -> bytes:
    for old, new in moved:
        data = data.replace(old.encode(), new.encode())
    return data


async def _export_one(runtime: Runtime, run_id: str, *, exact: bool) -> Archive:
    entries = tuple(await read_entries(runtime.store, run_id))
    get_start(run_id, entries)
    folder = runtime.folder(run_id)
    archive = Archive(
        run_id=run_id,
        redacted=False,
        # A seal says that a run was started in this store, so none may leave it.
        entries=tuple(unseal(entry) for entry in entries),
        blobs=await _read_blobs(entries, runtime),
        record=_read(folder / RECORD_FILE),
        events=_read(folder / EVENTS_FILE),
    )
    return archive if exact else await _redact(archive, runtime)


async def import_run(runtime: Runtime, archive: Archive) -> RunState:
    """Import a run with its descendants under their IDs. Raises `RunExists`.

    Descendants are imported first, so that an interrupted import can be repeated. Existing ones stay unchanged.
    """
    if await read_entries(runtime.store, archive.run_id):
        raise RunExists(f"There is already a run {archive.run_id!r}", hint="Show it with `agent runs show`")
    for data in {digest: data for each in (archive, *archive.children) for digest, data in each.blobs.items()}.values():
        # Before the journals that name them. After a crash in between, no run names them and `reclaim` deletes them.
        await runtime.store.put_blob(data)
    # Children first: the parent is what a second import looks for, so an interrupted one can be repeated.
    for child in archive.children:
        if not await read_entries(runtime.store, child.run_id):
            await _import_one(runtime, child)
    return await _import_one(runtime, archive)


async def _import_one(runtime: Runtime, archive: Archive) -> RunState:
    state = archive.fold()
    row = build_row(archive.run_id, *archive.entries, now=runtime.host.clock.now())
    store = runtime.store
    await runtime.delete_unstarted(archive.run_id)
    # Exports have no seals, but a file that was made by hand may have one.
    entries = store_entries(map(unseal, archive.entries))
    # For the approvals below. They take less than a minute, so the lease need not be renewed.
    lease = await store.begin_run(row, entries, owner=runtime.host.owner, seconds=60)
    try:
        for approval in _open_approvals(archive, state, now_row=row):
            await store.put_approval(lease, approval)
    finally:
        await store.release_lease(lease)
    _write_files(runtime.folder(archive.run_id), archive)
    return state


def _open_approvals(archive: Archive, state: RunState, *, now_row: RunRow) -> list[ApprovalRow]:
    """List the approvals that the run waits for, so that they can be decided here."""
    return [
        ApprovalRow(
            approval_id=step.approval_id,
            run_id=archive.run_id,
            step_id=step.step_id,
            payload=render_call(*name_call(step.action)),
            created_at=now_row.created_at,
            expires_at=datetime.fromisoformat(step.asked.expires_at) if step.asked and step.asked.expires_at else None,
        )
        for step in state.steps
        if step.phase == "asking"
    ]


def _write_files(folder: Path, archive: Archive) -> None:
    # The log and the record may contain private text of another machine.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, data in ((RECORD_FILE, archive.record), (EVENTS_FILE, archive.events)):
        if data:
            (folder / name).write_bytes(data)


async def _read_blobs(entries: tuple[Entry, ...], runtime: Runtime) -> dict[str, bytes]:
    blobs: dict[str, bytes] = {}
    missing: set[str] = set()
    for digest in list_digests(entries):
        try:
            blobs[digest] = await runtime.store.get_blob(digest)
        except BlobUnknown:  # not the digest of a blob, or of a catalog too large to store
            missing.add(digest)
    return blobs | _read_definitions(missing, runtime.host)


def _read_definitions(missing: Collection[str], host: Host) -> dict[str, bytes]:
    """Read unchanged definitions of large catalogs, of which only hashes are pinned."""
    if not missing:
        return {}
    files = [package.definition.data for package in get_skills(host)[0]]
    return {digest: data for data in files if (digest := hashlib.sha256(data).hexdigest()) in missing}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


async def _redact(archive: Archive, runtime: Runtime) -> Archive:
    cleaner = build_host_cleaner(runtime.host)
    blobs, renamed = _clean_blobs(archive.blobs, archive.entries, cleaner)
    entries = tuple(_rename(_clean_entry(entry, cleaner), renamed) for entry in archive.entries)
    if entries != archive.entries:
        entries = await _derive(archive.run_id, entries, blobs, runtime=runtime)
    # Record and events were redacted when they were written; some secrets may be known only since then.
    record, events = (
        cleaner.text(data.decode("utf-8", "replace")).encode() for data in (archive.record, archive.events)
    )
    return replace(archive, redacted=True, entries=entries, blobs=blobs, record=record, events=events)


def _clean_entry(entry: Entry, cleaner: Cleaner) -> Entry:
    """Redact texts and arguments, but not digests, IDs and hashes."""
    # `clean` accepts any value and returns one of the same type.
    cleaned = cast("Entry", cleaner.clean(cast("Payload", entry)))
    # A digest that looks like a secret must stay: it names a blob.
    if isinstance(entry, RunStarted):
        return replace(cleaned, pins=entry.pins, trace_id=entry.trace_id)
    if isinstance(entry, RunAdopted):
        return replace(cleaned, pins=entry.pins, nonce=entry.nonce)
    if isinstance(entry, ModelChanged):
        return replace(cleaned, pins=entry.pins)
    if isinstance(entry, ContextDisclosed):
        return entry
    return cleaned


def _clean_blobs(
    blobs: Mapping[str, bytes], entries: Sequence[Entry], cleaner: Cleaner
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Redact blobs, which get new digests. The second value maps old to new digests."""
    pinned = [entry.pins for entry in entries if isinstance(entry, RunStarted | RunAdopted | ModelChanged)]
    kinds: dict[str, BlobKind] = {digest: _get_kind(name) for pins in pinned for name, digest in pins.items()}
    cleaned: dict[str, bytes] = {}
    renamed: dict[str, str] = {}
    for digest, data in blobs.items():
        new = _clean_blob(data, kinds.get(digest, "text"), cleaner)
        name = hashlib.sha256(new).hexdigest()
        cleaned[name] = new
        if name != digest:
            renamed[digest] = name
    return cleaned, renamed


def _clean_blob(data: bytes, kind: BlobKind, cleaner: Cleaner) -> bytes:
    match kind:
        case "entry":
            return render_entry(_clean_entry(parse_entry(data), cleaner))
        case "json":
            return _clean_json(data, cleaner)
        case "text":
            return _clean_text(data, cleaner)


def _get_kind(pin: str) -> BlobKind:
    """Return the kind of a pin's bytes, also for pins inherited from a parent."""
    name = pin.split(":", 2)[2] if pin.startswith(PARENT_PREFIX) else pin.removeprefix(ORIGIN_PREFIX)
    if name == START:
        return "entry"
    return "text" if name.startswith((SKILL, AGENT, TASK)) or name == POLICY else "json"


def _clean_text(data: bytes, cleaner: Cleaner) -> bytes:
    try:
        return cleaner.text(data.decode()).encode()
    except UnicodeDecodeError:
        return data


def _clean_json(data: bytes, cleaner: Cleaner) -> bytes:
    """Redact the strings one by one, so that the result is valid JSON."""
    before = cast("JsonValue", json.loads(data))  # what a parser of JSON gives
    after = _clean_strings(before, cleaner)
    # Bytes without secrets stay as they are, so that their digest does too.
    return data if after == before else json.dumps(after, ensure_ascii=False).encode()


def _clean_strings(value: JsonValue, cleaner: Cleaner) -> JsonValue:
    match value:
        case str():
            return cleaner.text(value)
        case list():
            return [_clean_strings(item, cleaner) for item in value]
        case dict():
            return {key: _clean_strings(item, cleaner) for key, item in value.items()}
        case _:
            return value


def _rename(entry: Entry, renamed: Mapping[str, str]) -> Entry:
    # As text, because any field of an entry may name a blob.
    data = render_entry(entry)
    for old, new in renamed.items():
        data = data.replace(old.encode(), new.encode())
    return parse_entry(data)


async def _derive(
    run_id: str, entries: tuple[Entry, ...], blobs: Mapping[str, bytes], *, runtime: Runtime
) -> tuple[Entry, ...]:
    """Replay the run to compute request hashes and other values again that depend on changed texts."""
    store = RecordedStore(runtime.store, Recording(()), blobs=blobs)
    services = await build_replay_services(runtime.host, store, entries)
    outcome = await replay(run_id, entries, services, rederive=True)
    if outcome.divergence is not None:
        raise UsageError(
            f"Without its secrets run {run_id!r} would do something else from entry {outcome.divergence.number} on",
            hint="Export it with --exact, and keep the file as you keep the secrets",
        )
    return outcome.entries
