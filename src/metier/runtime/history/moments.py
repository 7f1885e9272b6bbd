"""What a run knew at one entry of its journal, and what that entry changed. The fold of the first entries, no more."""

import json
from collections.abc import Callable, Iterator, Sequence

from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.state import RunState, apply
from metier.errors import UsageError
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.history.entries import read_history
from metier.runtime.history.forks import can_fork
from metier.runtime.runs import Runtime
from metier.telemetry.excerpt import cut_middle, one_line

MOST_CHARACTERS = 4_000
"""Of one text in an entry that is shown."""
_MOST_LISTED = 200

type Clean = Callable[[JsonValue], JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that the run knows, in words."""

    name: str
    value: str
    before: str = ""
    """What it was one entry earlier, where that was something else."""
    is_changed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    number: int
    """How many entries are folded."""
    total: int
    kind: str
    """Of the last of them."""
    turn: int
    entry: str
    """The last of them as JSON, without secrets, long texts cut in the middle."""
    facts: tuple[Fact, ...]
    can_fork: bool
    """A new run can share these entries and go on from here."""


async def read_moment(
    runtime: Runtime, run_id: str, number: int, *, entries: Sequence[e.Entry] | None = None
) -> Moment:
    """`entries` are all of the journal, where it was read. Raises `UsageError` for a number that it does not have."""
    entries = await read_history(runtime, run_id) if entries is None else entries
    clean = build_place_cleaner(runtime.place).value
    return build_moment(run_id, entries, number, clean=clean)


def build_moment(run_id: str, entries: Sequence[e.Entry], number: int, *, clean: Clean) -> Moment:
    """Pure."""
    if not 1 <= number <= len(entries):
        raise UsageError(f"Run {run_id!r} has no entry {number}", hint=f"Its journal has entries 1 to {len(entries)}")
    state = RunState(run_id)
    for entry in entries[: number - 1]:
        apply(state, entry)
    before = dict(_describe(state))
    last = entries[number - 1]
    apply(state, last)
    shown = clean(_shorten(last.model_dump(mode="json", exclude_defaults=True)))
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
    names = list(dict.fromkeys((*after, *before)))
    for name in names:
        old, new = before.get(name, ""), after.get(name, "")
        yield Fact(name=name, value=str(clean(new)), before=str(clean(old)), is_changed=old != new)


def _describe(state: RunState) -> Iterator[tuple[str, str]]:
    """What is known, by name; nothing that is empty."""
    yield "status", state.status
    yield "phase", state.phase
    yield "turn", str(state.turn)
    for name, value in (
        ("skill in charge", state.skill),
        ("skills used", ", ".join(dict.fromkeys(state.used_skills))),
        ("candidates", ", ".join(f"{each.skill_name} {each.score:.0f}" for each in state.candidates)),
        ("disclosed", ", ".join(f"{piece.skill}:{piece.file.path}" for piece in state.pieces[-_MOST_LISTED:])),
        ("waits for", f"{state.pause.pause}: {state.pause.reason}" if state.pause else ""),
        ("question", state.question.question if state.question else ""),
        ("model call", f"request {state.call.request_hash[:12]} without a reply" if state.call else ""),
        ("turns in the prompt", str(len(state.run)) if state.run else ""),
        ("plan of the model", "; ".join(f"{each.status}: {each.step}" for each in state.todo)),
        ("tools turned off", ", ".join(sorted(state.disabled))),
        ("child runs", ", ".join(child.run_id for child in state.children)),
        ("tokens", f"{state.input_tokens:,} in, {state.output_tokens:,} out" if state.input_tokens else ""),
        ("cost", f"${state.cost_usd:.4f}" if state.cost_usd else ""),
        ("failure", f"{state.failure.reason}: {state.failure.message}" if state.failure else ""),
        ("result", one_line(state.result, 400)),
    ):
        if value:
            yield name, value
    for step in state.steps[-_MOST_LISTED:]:
        tool, arguments = name_call(step.action)
        given = one_line(json.dumps(arguments, ensure_ascii=False), 160)
        ended = f" ({step.finished.status})" if step.finished is not None else ""
        yield f"step {step.step_id}", f"{step.phase}{ended}: {tool} {given}"


def _shorten(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return cut_middle(value, MOST_CHARACTERS)
    if isinstance(value, list):
        return [_shorten(each) for each in value[:_MOST_LISTED]]
    if isinstance(value, dict):
        return {key: _shorten(each) for key, each in value.items()}
    return value
