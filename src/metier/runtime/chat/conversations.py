"""The conversation of a context, read from its store and written back: turns, summary, facts. Starts no run.

The journals of the runs are the truth; the log of the context holds what the next turn is told of each, so that a turn
costs one look and not one per turn before it. What a crash left out of the log is put in from the journals.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import takewhile
from typing import cast

from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.context.conversation import (
    KnownFact,
    Measures,
    PastTurn,
    build_measures,
    build_messages,
    render_facts,
    render_summary,
)
from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.journal import read_entries
from metier.engine.phases import FINAL
from metier.engine.state import RunState, fold
from metier.messages import MediaPart
from metier.runtime.workspace.agents import SUMMARIZER
from metier.runtime.workspace.instructions import Said
from metier.settings.model import Settings
from metier.store.base import RunRow, Store
from metier.store.contexts import MAX_EVENTS_PER_CONTEXT, ContextEvent, ContextState, Fact, NewEvent, NewFact
from metier.telemetry.excerpt import one_line

TURN = "turn"
UNDONE = "undone"
SUMMARIZED = "summarized"
OWN_FACTS = "remembered"
TOLD_FACTS = "told"
CHOICES = "chat"
"""The bucket of facts that says with which agent and model a chat goes on."""
CROWDED = MAX_EVENTS_PER_CONTEXT * 4 // 5
LOOKED_AT = 20
"""How many runs are looked at for turns that are not in the log; a crash leaves one."""
MOST_NOTES = 12
_LONGEST_NOTE = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What is known of a context before its next turn."""

    state: ContextState
    turns: tuple[PastTurn, ...] = ()
    """Those that the summary does not cover and that were not undone, oldest first."""
    facts: tuple[KnownFact, ...] = ()
    choices: dict[str, str] = field(default_factory=dict[str, str])
    recorded: frozenset[str] = frozenset()
    """Runs that the log tells of, undone ones too."""
    is_crowded: bool = False
    """The log is about to lose what nothing sums up yet."""


async def read_conversation(store: Store, context_id: str) -> Conversation:
    """An unused context has an empty conversation."""
    state = await store.contexts.find_state(context_id) or ContextState(context_id=context_id)
    events = await store.contexts.list_events(context_id)
    undone = {_text(event.payload, "run_id") for event in events if event.event_type == UNDONE}
    # A turn that was reopened ended more than once: the last end counts.
    told = [_read_turn(event) for event in events if event.event_type == TURN]
    turns = list({turn.run_id: turn for turn in told}.values())
    facts = await store.contexts.list_facts(context_id)
    return Conversation(
        state=state,
        turns=tuple(t for t in turns if t.number > state.summarized_to and t.run_id not in undone),
        facts=_read_facts(facts),
        choices={fact.key: str(fact.value) for fact in facts if fact.bucket == CHOICES},
        recorded=frozenset(turn.run_id for turn in turns),
        is_crowded=bool(events) and events[-1].number - state.summarized_to > CROWDED,
    )


async def find_missing(store: Store, conversation: Conversation) -> list[RunRow]:
    """Runs of the context since the last turn that the log tells of, oldest first; the last one may not have ended."""
    rows = await store.list_runs(context_id=conversation.state.context_id, limit=LOOKED_AT)
    turns = [row for row in rows if row.agent != SUMMARIZER]
    return list(takewhile(lambda row: row.run_id not in conversation.recorded, turns))[::-1]


def build_said(conversation: Conversation, measures: Measures, *, shows_media: bool = False) -> Said:
    """`shows_media`: the model that reads it sees pictures and documents."""
    return Said(
        facts=render_facts(conversation.facts, measures),
        summary=render_summary(conversation.state.summary, measures),
        conversation=build_messages(conversation.turns, measures, shows_media=shows_media),
    )


def get_measures(settings: Settings) -> Measures:
    limit = settings.model.max_context_tokens - settings.model.response_headroom_tokens
    return build_measures(settings.chat, limit=limit)


async def load_turn(store: Store, run_id: str) -> tuple[RunState, PastTurn]:
    """A turn from its journal."""
    entries = await read_entries(store, run_id)
    state = fold(run_id, entries)
    said = state.started.task if state.started else ""
    media = state.started.attachments if state.started else ()
    notes = _find_notes(entries)
    return state, PastTurn(run_id=run_id, said=said, answer=describe_answer(state), notes=notes, media=media)


def describe_answer(state: RunState) -> str:
    if state.phase == "DONE":
        return state.result
    if state.failure is not None and state.failure.status == "canceled":
        return "[Stopped before an answer]"
    if state.failure is not None:
        return f"[No answer: {state.failure.message}]"
    return "[No answer yet]"


def build_turn_event(state: RunState, turn: PastTurn, *, number: int) -> NewEvent:
    """What the log keeps of a turn that has ended. Told twice, it is kept once."""
    assert state.phase in FINAL
    return NewEvent(
        event_type=TURN,
        payload={
            "run_id": turn.run_id,
            "said": turn.said,
            "answer": turn.answer,
            "notes": list(turn.notes),
            **({"media": [part.model_dump(mode="json") for part in turn.media]} if turn.media else {}),
            "status": state.status,
            "cost_usd": state.cost_usd,
        },
        turn_number=number,
        agent_id=state.started.agent if state.started else "",
        message_id=f"{turn.run_id}:{state.seq}",
    )


def build_undone_event(run_id: str) -> NewEvent:
    return NewEvent(event_type=UNDONE, payload={"run_id": run_id}, message_id=f"undone:{run_id}")


def build_told_facts(facts: Iterable[KnownFact], *, turn: int) -> tuple[NewFact, ...]:
    """With the turn they were told in, so that they can be undone with it."""
    return tuple(NewFact(bucket=TOLD_FACTS, key=fact.key, value={"text": fact.text, "turn": turn}) for fact in facts)


def _read_turn(event: ContextEvent) -> PastTurn:
    notes = event.payload.get("notes") if isinstance(event.payload, dict) else None
    media = event.payload.get("media") if isinstance(event.payload, dict) else None
    return PastTurn(
        run_id=_text(event.payload, "run_id"),
        said=_text(event.payload, "said"),
        answer=_text(event.payload, "answer"),
        notes=tuple(str(note) for note in notes) if isinstance(notes, list) else (),
        number=event.number,
        turn=event.turn_number,
        media=tuple(map(MediaPart.model_validate, media)) if isinstance(media, list) else (),
    )


def _read_facts(facts: Sequence[Fact]) -> tuple[KnownFact, ...]:
    """In the order in which they were told; what a person asked to keep stands before the same told by the way."""
    told = sorted((f for f in facts if f.bucket in (OWN_FACTS, TOLD_FACTS)), key=lambda f: (f.timestamp, f.key))
    known = [KnownFact(key=fact.key, text=_text(fact.value, "text"), is_own=fact.bucket == OWN_FACTS) for fact in told]
    own = {fact.key for fact in known if fact.is_own}
    return tuple(fact for fact in known if fact.is_own or fact.key not in own)


def _find_notes(entries: Sequence[e.Entry]) -> tuple[str, ...]:
    """What was done for a message: the calls with their ends, and what the person was asked. Never what came out."""
    notes: dict[str, str] = {}
    asked: dict[str, str] = {}
    for entry in entries:
        match entry:
            case e.StepStarted() if entry.action.type in ("call_tool", "run_command"):
                name, arguments = name_call(entry.action)
                given = ", ".join(f"{key}={value}" for key, value in arguments.items())
                notes[entry.step_id] = one_line(f"{name}({given})", _LONGEST_NOTE)
            case e.StepFinished() if entry.step_id in notes:
                notes[entry.step_id] += f": {entry.status}"
            case e.InputAsked():
                asked[entry.request_id] = one_line(f"asked the person: {entry.question}", _LONGEST_NOTE)
            case e.InputGiven() if entry.request_id in asked:
                answers = ", ".join(f"{key}={value}" for key, value in entry.values.items())
                told = one_line(f"They answered: {answers}", _LONGEST_NOTE)
                notes[entry.request_id] = f"{asked[entry.request_id]} {told}"
            case _:
                pass
    return tuple(notes.values())[-MOST_NOTES:]


def _text(value: JsonValue, key: str) -> str:
    found = value.get(key, "") if isinstance(value, dict) else value
    return found if isinstance(found, str) else str(cast("object", found))
