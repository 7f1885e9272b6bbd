"""Make a history valid for any vendor: every call answered right after it, ids unique and short, no foreign reasoning.

Pure. A history is cut into segments (what the model said, then what it was told); each is settled on its own and its
wire form is kept by the identity of its messages, so a long run does not pay for its length again on every turn.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from metier.messages import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from metier.providers.json_values import Wire

NO_RESULT = "No result: the call was interrupted before it finished"
CONTINUE = "Continue."
CUT = "(Earlier messages were left out.)"

_SHORT_ID = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Turn:
    """Everything one side said in a row. Results of tools come first in a user's turn, in the order of their calls."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one wire format wants a history."""

    provider: str
    """Reasoning of other providers is left out."""
    longest_id: int
    to_wire: Callable[[Turn], list[Wire]]
    variant: str = ""
    """Tells apart wire forms of one provider that must not share a cache."""


class Segment(NamedTuple):
    spoken: tuple[Message, ...]
    """Of the model; empty only in the first segment."""
    told: tuple[Message, ...]


class _Settled(NamedTuple):
    messages: tuple[Message, ...]
    wires: list[Wire]
    ids: frozenset[str]


class SegmentCache:
    """Wire forms of settled segments. Holds the messages too, so an identity is never used twice."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._entries: dict[tuple[object, ...], _Settled] = {}

    def find(self, key: tuple[object, ...]) -> _Settled | None:
        return self._entries.get(key)

    def keep(self, key: tuple[object, ...], settled: _Settled) -> None:
        if len(self._entries) >= self._limit:
            self._entries.clear()
        self._entries[key] = settled


def wire_history(messages: Sequence[Message], dialect: Dialect, cache: SegmentCache) -> list[Wire]:
    """The whole history in wire form. The dictionaries are shared with later requests: copy before changing one."""
    wires: list[Wire] = []
    seen: set[str] = set()
    last: Segment | None = None
    for segment in split_segments(messages):
        if last is None and segment.spoken:
            wires.extend(dialect.to_wire(Turn("user", (TextPart(text=CUT),))))
        last = segment
        settled = _settle(segment, dialect, cache, seen=seen)
        seen |= settled.ids
        wires.extend(settled.wires)
    if last is not None and last.spoken and not last.told and not _has_calls(last.spoken):
        wires.extend(dialect.to_wire(Turn("user", (TextPart(text=CONTINUE),))))
    return wires


def split_segments(messages: Sequence[Message]) -> Iterator[Segment]:
    spoken: list[Message] = []
    told: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            if told:
                yield Segment(tuple(spoken), tuple(told))
                spoken, told = [], []
            spoken.append(message)
        else:
            told.append(message)
    if spoken or told:
        yield Segment(tuple(spoken), tuple(told))


def settle_segment(segment: Segment, dialect: Dialect, taken: set[str] | frozenset[str] = frozenset()) -> list[Turn]:
    """One or two valid turns. `taken` are call ids that earlier segments used."""
    results = _Results(segment.told)
    used = set(taken)
    said: list[Part] = []
    answers: list[Part] = []
    for part in _parts(segment.spoken):
        match part:
            case ToolCallPart():
                call = _with_short_id(part, dialect, used)
                used.add(call.id)
                said.append(call)
                answers.append(results.take(part, wire_id=call.id))
            case ThinkingPart() if part.provider != dialect.provider:
                pass
            case TextPart() if not part.text.strip():
                pass
            case TextPart() | ThinkingPart():
                said.append(part)
            case ToolResultPart():
                pass
    told = (*answers, *results.rest())
    turns = [Turn("assistant", tuple(said))] if said else []
    return [*turns, Turn("user", told)] if told else turns


def _settle(segment: Segment, dialect: Dialect, cache: SegmentCache, *, seen: set[str]) -> _Settled:
    key = (dialect.variant, *map(id, segment.spoken), None, *map(id, segment.told))
    known = cache.find(key)
    if known is not None and seen.isdisjoint(known.ids):
        return known
    turns = settle_segment(segment, dialect, seen)
    ids = frozenset(part.id for turn in turns for part in turn.parts if isinstance(part, ToolCallPart))
    wires = [wire for turn in turns for wire in dialect.to_wire(turn)]
    settled = _Settled((*segment.spoken, *segment.told), wires, ids)
    # Ids that were changed to avoid earlier ones hold for this history only.
    if known is None and seen.isdisjoint(part.id for part in _parts(segment.spoken) if isinstance(part, ToolCallPart)):
        cache.keep(key, settled)
    return settled


class _Results:
    """The results among what the model was told, handed out to the calls they belong to."""

    def __init__(self, told: Sequence[Message]) -> None:
        self._waiting: dict[str, list[ToolResultPart]] = {}
        self._parts = list(_parts(told))
        self._taken: set[int] = set()
        for part in self._parts:
            if isinstance(part, ToolResultPart):
                self._waiting.setdefault(part.call_id, []).append(part)

    def take(self, call: ToolCallPart, *, wire_id: str) -> ToolResultPart:
        waiting = self._waiting.get(call.id)
        if not waiting:
            return ToolResultPart(call_id=wire_id, name=call.name, text=NO_RESULT, is_error=True)
        result = waiting.pop(0)
        self._taken.add(id(result))
        return result if result.call_id == wire_id else result.model_copy(update={"call_id": wire_id})

    def rest(self) -> Iterator[Part]:
        """What is left, as text: a result whose call is gone is still worth reading."""
        for part in self._parts:
            match part:
                case ToolResultPart():
                    if id(part) not in self._taken:
                        yield TextPart(text=f"Result of an earlier call of {part.name!r}:\n{part.text}")
                case TextPart():
                    if part.text.strip():
                        yield part
                case ThinkingPart() | ToolCallPart():
                    pass


def _parts(messages: Sequence[Message]) -> Iterator[Part]:
    return (part for message in messages for part in message.parts)


def _has_calls(messages: Sequence[Message]) -> bool:
    return any(isinstance(part, ToolCallPart) for part in _parts(messages))


def _with_short_id(call: ToolCallPart, dialect: Dialect, used: set[str]) -> ToolCallPart:
    fits = len(call.id) <= dialect.longest_id and _SHORT_ID.fullmatch(call.id)
    if fits and call.id not in used:
        return call
    number = 0
    while True:
        text = f"{call.id}\0{number}" if number else call.id
        short = "call_" + hashlib.sha256(text.encode()).hexdigest()[:24]
        if short not in used:
            return call.model_copy(update={"id": short})
        number += 1
