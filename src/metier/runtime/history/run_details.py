"""Details of a run: the files that it wrote, an exchange with the model, its state at a journal entry."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import Struct
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.definitions.files.contained_path import read_contained
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelReplied
from metier.engine.entries.step import StepFinished
from metier.engine.journal import read_entries, read_entries_of
from metier.engine.model.model_call import dump_request
from metier.engine.model.past_prompts import list_turns, rebuild_prompt
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.errors import FilesChanged, UsageError
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.history.forks import can_fork
from metier.runtime.history.replays import build_replay_services
from metier.runtime.runs import Runtime
from metier.telemetry.amounts import format_cost
from metier.telemetry.excerpt import cut_middle, one_line
from metier.values import dump_fields

MAX_ARTIFACT_BYTES = 100_000_000
_MAX_ARTIFACTS = 500

MAX_FACT_CHARACTERS = 4_000
"""Limit for one text in a shown entry."""
_MAX_FACTS = 200


class Artifact(Struct, frozen=True, kw_only=True):
    name: str
    """Path relative to the workspace, or the name of a file of the run."""
    sha256: str
    """Hash of the last written bytes."""
    bytes: int
    step_id: str
    file: Path


async def list_artifacts(
    runtime: Runtime, run_id: str, *, entries: Sequence[Entry] | None = None
) -> tuple[Artifact, ...]:
    """List the last state of each file, in the order in which they were first written."""
    entries = await read_entries_of(runtime.store, run_id, StepFinished) if entries is None else entries
    roots = (runtime.folder(run_id), runtime.host.workspace)
    # A dict keeps the place of the first write and the value of the last one.
    found = {artifact.file: artifact for artifact in _find(entries, roots)}
    return tuple(found.values())[:_MAX_ARTIFACTS]


async def read_artifact(runtime: Runtime, run_id: str, sha256: str) -> tuple[Artifact, bytes]:
    """Return the bytes that the run wrote. Raises `UsageError` for an unknown hash, `FilesChanged` if they are gone."""
    found = next((each for each in await list_artifacts(runtime, run_id) if each.sha256 == sha256), None)
    if found is None:
        raise UsageError(f"Run {run_id!r} wrote no file of this hash", hint="Its page lists those that it wrote")
    roots = (runtime.folder(run_id), runtime.host.workspace)
    within = next(root for root in roots if found.file.is_relative_to(root))
    try:
        data = await run_sync(lambda: read_contained(found.file, within=within, limit=MAX_ARTIFACT_BYTES))
    except OSError as error:
        raise FilesChanged(f"{found.name!r} cannot be read: {error.strerror}", hint="It may be gone") from error
    # A later step or another program may have changed it, and these bytes would be taken for those of the run.
    if hashlib.sha256(data).hexdigest() != sha256:
        raise FilesChanged(
            f"{found.name!r} is no longer what the run wrote",
            hint="Load the page again, or look at the diff of its step",
        )
    return found, data


def _find(entries: Sequence[Entry], roots: Sequence[Path]) -> Iterator[Artifact]:
    """Yield the artifacts in the run's folder or the workspace. An imported journal may name any other path."""
    finished = [entry for entry in entries if isinstance(entry, StepFinished)]
    for step_id, noted in ((step.step_id, noted) for step in finished for noted in step.artifacts):
        given, size = Path(str(noted.get("path", ""))), noted.get("bytes")
        file = given if given.is_absolute() else roots[-1] / given
        # The first root counts: the folder of the run usually is inside of the workspace.
        root = next((each for each in roots if file.is_relative_to(each)), None)
        # `is_relative_to` compares names only, so `..` could lead out of the root.
        if root is not None and ".." not in file.parts:
            yield Artifact(
                name=file.relative_to(root).as_posix(),
                sha256=str(noted.get("sha256", "")),
                bytes=size if isinstance(size, int) else 0,
                step_id=step_id,
                file=file,
            )


class Exchange(Struct, frozen=True, kw_only=True):
    turn: int
    turns: tuple[int, ...]
    """Turns with a model request."""
    request: str
    """Request as JSON, rebuilt from the journal, without the host's secrets."""
    request_hash: str
    is_exact: bool
    """True if the rebuilt request has the recorded hash."""
    replies: tuple[str, ...]
    """Replies as JSON: two if the first one was invalid, none if no reply arrived."""


async def read_exchange(runtime: Runtime, run_id: str, turn: int) -> Exchange:
    """Read the exchange of a turn. Raises `UsageError` for a turn without a model request."""
    entries = await read_entries(runtime.store, run_id)
    turns = list_turns(entries)
    if turn not in turns:
        known = f"It has turns {turns[0]} to {turns[-1]}" if turns else "No model was asked in it"
        raise UsageError(f"Run {run_id!r} has no turn {turn}", hint=known)
    services = await build_replay_services(runtime.host, runtime.store, entries)
    past = await rebuild_prompt(run_id, entries, services, turn=turn)
    clean = build_host_cleaner(runtime.host).value
    return Exchange(
        turn=turn,
        turns=turns,
        request=_render(clean(dump_request(past.request))),
        request_hash=past.recorded_hash,
        is_exact=past.is_exact,
        replies=tuple(_render(clean(reply)) for reply in _list_replies(entries, turn)),
    )


def _list_replies(entries: Sequence[Entry], turn: int) -> list[JsonValue]:
    replied = [entry for entry in entries if isinstance(entry, ModelReplied) and entry.turn == turn]
    return [dump_fields(entry.reply, with_defaults=False) for entry in replied]


def _render(value: JsonValue) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


type Clean = Callable[[JsonValue], JsonValue]


class Fact(Struct, frozen=True, kw_only=True):
    """A fact about the state of the run, for display."""

    name: str
    value: str
    before: str = ""
    """Value before the entry, if it was different."""
    is_changed: bool = False


class Moment(Struct, frozen=True, kw_only=True):
    number: int
    """Number of folded entries."""
    total: int
    kind: str
    """Kind of the last entry."""
    turn: int
    entry: str
    """The last entry as JSON, without secrets, long texts truncated in the middle."""
    facts: tuple[Fact, ...]
    can_fork: bool
    """True if a new run can share these entries and continue from here."""


async def read_moment(runtime: Runtime, run_id: str, number: int, *, entries: Sequence[Entry] | None = None) -> Moment:
    """Return the state at an entry; `entries` is the whole journal, if already read. Raises `UsageError`."""
    entries = await runtime.read_entries(run_id) if entries is None else entries
    clean = build_host_cleaner(runtime.host).value
    return build_moment(run_id, entries, number, clean=clean)


def build_moment(run_id: str, entries: Sequence[Entry], number: int, *, clean: Clean) -> Moment:
    """Fold the entries up to this number, and compare the state with the one before. Pure."""
    if not 1 <= number <= len(entries):
        raise UsageError(f"Run {run_id!r} has no entry {number}", hint=f"Its journal has entries 1 to {len(entries)}")
    state = RunState(run_id)
    for entry in entries[: number - 1]:
        apply(state, entry)
    # As text, because `apply` changes the state in place.
    before = dict(_describe(state))
    last = entries[number - 1]
    apply(state, last)
    shown = clean(_shorten(dump_fields(last, with_defaults=False)))
    return Moment(
        number=number,
        total=len(entries),
        kind=last.kind,
        turn=state.turn,
        entry=json.dumps(shown, indent=2, ensure_ascii=False),
        facts=tuple(_compare(before, dict(_describe(state)), clean=clean)),
        can_fork=can_fork(state),
    )


def _compare(before: dict[str, str], after: dict[str, str], *, clean: Clean) -> Iterator[Fact]:
    # With the names of before, so that a value that is gone is shown too.
    names = list(dict.fromkeys((*after, *before)))
    for name in names:
        old, new = before.get(name, ""), after.get(name, "")
        yield Fact(name=name, value=str(clean(new)), before=str(clean(old)), is_changed=old != new)


def _describe(state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the values of the state by name, without empty ones."""
    yield "status", state.status
    yield "phase", state.phase
    yield "turn", str(state.turn)
    for name, value in (
        ("skill in charge", state.skill),
        ("skills used", ", ".join(dict.fromkeys(state.used_skills))),
        ("candidates", ", ".join(f"{each.skill_name} {each.score:.0f}" for each in state.candidates)),
        ("disclosed", ", ".join(f"{piece.skill}:{piece.file.path}" for piece in state.pieces[-_MAX_FACTS:])),
        ("waits for", f"{state.pause.pause}: {state.pause.reason}" if state.pause else ""),
        ("question", state.question.question if state.question else ""),
        ("model call", f"request {state.call.request_hash[:12]} without a reply" if state.call else ""),
        ("turns in the prompt", str(len(state.run)) if state.run else ""),
        ("plan of the model", "; ".join(f"{each.status}: {each.step}" for each in state.todo)),
        ("tools turned off", ", ".join(sorted(state.disabled))),
        ("child runs", ", ".join(child.run_id for child in state.children)),
        ("tokens", f"{state.input_tokens:,} in, {state.output_tokens:,} out" if state.input_tokens else ""),
        ("cost", format_cost(state.cost_usd) if state.cost_usd else ""),
        ("failure", f"{state.failure.reason}: {state.failure.message}" if state.failure else ""),
        ("result", one_line(state.result, 400)),
    ):
        if value:
            yield name, value
    for step in state.steps[-_MAX_FACTS:]:
        tool, arguments = name_call(step.action)
        given = one_line(json.dumps(arguments, ensure_ascii=False), 160)
        ended = f" ({step.finished.status})" if step.finished is not None else ""
        yield f"step {step.step_id}", f"{step.phase}{ended}: {tool} {given}"


def _shorten(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return cut_middle(value, MAX_FACT_CHARACTERS)
    if isinstance(value, list):
        return [_shorten(each) for each in value[:_MAX_FACTS]]
    if isinstance(value, dict):
        return {key: _shorten(each) for key, each in value.items()}
    return value
