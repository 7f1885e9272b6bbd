"""Evals from recordings. They need no key and no network, and check that each recording is still current."""

import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from msgspec import Struct
from msgspec.structs import fields, replace

from metier.engine.entries.entry import Entry
from metier.engine.replay.recorded_store import RecordedStore
from metier.engine.services import Instructions, Services
from metier.errors import MetierError
from metier.evals.bench import Variant, build_bench, open_bench
from metier.evals.eval_results import RunRow
from metier.evals.evaluation import begin_row, evaluate, open_evidence
from metier.evals.recordings import CaseRecording, find_recording
from metier.evals.targets import SourcedCase, Target
from metier.providers.options import OFFLINE
from metier.runtime.build import list_tools
from metier.runtime.history.archive import Archive
from metier.runtime.history.replays import build_replay_services, open_archive_store, replay_archive
from metier.runtime.host import Host
from metier.runtime.records.pins import HOST, SETTINGS, find_instructions, find_tools
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.store.base import Store
from metier.tools.base import ToolInfo
from metier.tools.toolbox import Toolbox

_CAUSES = frozenset({"sources", "project_files", "conversation", "facts", "summary", "step"})
"""Fields of instructions that are not layers of the prompt prefix."""

ITSELF = Variant(name="")


class Now(Struct, frozen=True, kw_only=True):
    """The current state that a recording is compared with."""

    host: Host
    """Host of a bench with the current target."""
    store: Store
    files: Mapping[str, str]


# The offline provider reads neither instructions nor tool descriptions, so its recordings become stale only by changes
# of the target's files or the case.
async def list_stale(recording: CaseRecording, sourced: SourcedCase, now: Now) -> tuple[str, ...]:
    """Return one phrase for each change since the recording."""
    if changed := _get_files(recording, sourced, now.files):
        return changed
    archive = recording.archive
    if archive.started.provider != OFFLINE and (changed := await _list_prompt(archive, now)):
        return changed
    try:
        report = await replay_archive(archive, host=now.host, store=now.store)
    except MetierError as error:
        return (f"the recording cannot be replayed: {error.message}",)
    divergence = report.outcome.divergence
    if divergence is None:
        return ()
    return (f"this version of Metier goes on differently at entry {divergence.number}: {divergence.sentence}",)


def _get_files(recording: CaseRecording, sourced: SourcedCase, files: Mapping[str, str]) -> tuple[str, ...]:
    then = recording.note.files
    changed = [f"{path} changed" for path in sorted(then.keys() & files.keys()) if then[path] != files[path]]
    changed += [f"{path} is new" for path in sorted(files.keys() - then.keys())]
    changed += [f"{path} is gone" for path in sorted(then.keys() - files.keys())]
    if recording.note.case != sourced.case.digest:
        changed.append(f"what case {sourced.case.id!r} asks changed ({sourced.file}:{sourced.case.line})")
    return tuple(changed)


async def _list_prompt(archive: Archive, now: Now) -> tuple[str, ...]:
    """Describe layers of the prompt prefix and tools that differ from the recorded ones."""
    store = open_archive_store(archive, now.store)
    changed: list[str] = []
    for each in (archive, *archive.children):
        pins = each.started.pins
        pinned = await find_instructions(pins, store)
        if pinned is None:
            continue
        entries = await _settle_here(each, store, now.host)
        services = await build_replay_services(now.host, store, entries, with_current_files=True)
        changed += _compare_layers(pinned, services.instructions)
        changed += _compare_tools(await find_tools(pins, store), services, now.host)
    return tuple(dict.fromkeys(changed))


async def _settle_here(archive: Archive, store: RecordedStore, host: Host) -> tuple[Entry, ...]:
    """Return the journal with the run's settings, except for the current skill folders."""
    pins = dict(archive.started.pins)
    for name in (SETTINGS, HOST):
        if name in pins:
            settings = Settings.model_validate_json(await store.get_blob(pins[name]))
            here = host.settings.skills
            skills = settings.skills.model_copy(update={"dir": here.dir, "enabled": here.enabled})
            moved = settings.model_copy(update={"skills": skills})
            pins[name] = await store.put_blob(moved.model_dump_json().encode())
    return (replace(archive.started, pins=pins), *archive.entries[1:])


def _compare_layers(then: Instructions, now: Instructions) -> list[str]:
    names = [field.name for field in fields(Instructions) if field.name not in _CAUSES]
    return [f"prompt prefix: layer {name!r} changed" for name in names if getattr(then, name) != getattr(now, name)]


def _compare_tools(then: tuple[ToolInfo, ...], services: Services, host: Host) -> list[str]:
    """Compare tools, except those of toolsets and servers, which a replay does not start."""
    known = {
        info.name: info for info in Toolbox(list_tools(tuple(services.skill_index.packages.values()), host)).infos()
    }
    changed: list[str] = []
    for info in then:
        if "." in info.name or "/" in info.name:
            continue
        current = known.get(info.name)
        if current is None:
            changed.append(f"tool {info.name} is gone")
        elif (current.description, current.input_schema) != (info.description, info.input_schema):
            changed.append(f"tool {info.name} changed")
    return changed


async def replay_target(target: Target, cases: Sequence[SourcedCase]) -> tuple[RunRow, ...]:
    """Return a row per case, in order."""
    rows: dict[int, RunRow] = {}
    async with _open_now(target) as now, anyio.create_task_group() as tasks:

        async def replay(number: int, sourced: SourcedCase) -> None:
            rows[number] = await _replay_case(target, sourced, now)

        for number, sourced in enumerate(cases):
            tasks.start_soon(replay, number, sourced)
    return tuple(rows[number] for number in sorted(rows))


@asynccontextmanager
async def _open_now(target: Target) -> AsyncGenerator[Now]:
    """Open a bench without a case, with an empty store."""
    with tempfile.TemporaryDirectory(prefix="agent-eval-") as folder:
        root = Path(folder)
        build_bench(target, None, root, variant=ITSELF)
        host = open_bench(target, root, variant=ITSELF, case=None, runs=root / "runs")
        async with open_runtime(host) as runtime:
            yield Now(host=runtime.host, store=runtime.store, files=target.digest_files())


async def _replay_case(target: Target, sourced: SourcedCase, now: Now) -> RunRow:
    row = begin_row(sourced)
    try:
        recording = find_recording(sourced)
    except MetierError as error:
        return row.model_copy(update={"status": "stale", "reasons": (error.message,)})
    if recording is None:
        reason = "it was never recorded; `agent eval … --record` does that"
        return row.model_copy(update={"status": "missing", "reasons": (reason,)})
    stale = await list_stale(recording, sourced, now)
    evidence = open_evidence(recording.archive, sourced)
    graded = await evaluate(row, evidence, target=target, sourced=sourced, host=now.host, judged=recording.note.judged)
    return graded.model_copy(update={"status": "stale", "reasons": stale}) if stale else graded
