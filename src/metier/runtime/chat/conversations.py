"""The conversation of a context: its turns, facts and summary, read from the store and written back.

A model summarizes older turns, in a separate run. Without a model, the summary consists of extracts.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import cast

from msgspec import Struct, convert, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.context.conversation import (
    KnownFact,
    Measures,
    PastTurn,
    build_measures,
    build_messages,
    count_folded,
    cut,
    parse_facts,
    render_facts,
    render_summary,
    render_transcript,
)
from metier.engine.entries.entry import Entry
from metier.engine.entries.question import InputAsked, InputGiven, UserMessageAdded
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.journal import read_entries
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.messages import MediaPart
from metier.providers.failures import MissingKey
from metier.providers.options import OFFLINE
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.driver import DriveOptions
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.runtime.workspace.agents import SUMMARIZER, ResolvedAgent, resolve_agent, restore_agent
from metier.runtime.workspace.instructions import ExtraInput
from metier.settings.sections import Settings
from metier.store.base import RunRow, Store
from metier.store.contexts import (
    MAX_EVENTS_PER_CONTEXT,
    MAX_SUMMARY_SIZE_CHARS,
    NEVER,
    ContextChange,
    ContextEvent,
    ContextState,
    Fact,
    NewEvent,
    NewFact,
    NewSummary,
)
from metier.store.summaries import summarize_by_extraction
from metier.telemetry.excerpt import one_line
from metier.values import dump_fields

TURN = "turn"
UNDONE = "undone"
SUMMARIZED = "summarized"
OWN_FACTS = "remembered"
TOLD_FACTS = "told"
CHOICES = "chat"
"""Bucket of facts with the agent and model of a chat."""
# The store drops older events of a context, so turns must be summarized before the log is full.
CROWDED = MAX_EVENTS_PER_CONTEXT * 4 // 5
LOOKED_AT = 20
"""Number of runs to check for turns that are missing from the log. A crash loses at most one."""
MAX_NOTES = 12
_MAX_NOTE_LENGTH = 160

SUMMARIZER_AGENT = b"""---
name: Summarizer
tools: []
skills: []
tasks: []
---

You keep the record of a conversation between a person and an agent. Answer with text alone and call no tool.
"""
SUM_UP_TASK = """Below are the summary of a conversation so far, the facts that are kept beside it, and the turns since.
Write the new summary of all of it: what the person wants, what was decided and why, what was done (names of files,
commands and numbers exactly), what is still open. Leave out what is over and done with. At most {words} words.

Then, if the turns hold facts that must stay word for word (names, numbers, preferences, standing instructions) and that
are not kept yet, write a line `Facts:` and one line `- name: fact` for each.
"""
FACTS_LINE = "facts:"
MIN_SUMMARY_CHARACTERS = 20
"""Minimum length of a useful summary."""
# One turn for the summary, and one more in case the model first calls a tool that it does not have.
MAX_SUMMARIZER_TURNS = 2


# The journals of the runs are authoritative. The log of the context caches what the next turn needs of each run, so
# that a turn needs one read instead of one per earlier turn. Entries that a crash lost are restored from the journals.
class Conversation(Struct, frozen=True, kw_only=True):
    """The state of a conversation before its next turn."""

    state: ContextState
    turns: tuple[PastTurn, ...] = ()
    """Turns after the summary that were not undone, oldest first."""
    facts: tuple[KnownFact, ...] = ()
    choices: dict[str, str] = field(default_factory=dict[str, str])
    recorded: frozenset[str] = frozenset()
    """Runs in the log, including undone ones."""
    is_crowded: bool = False
    """True if the log is about to drop turns that are not summarized yet."""


async def read_conversation(store: Store, context_id: str) -> Conversation:
    """Read the conversation, which is empty for an unused context."""
    state = await store.contexts.find_state(context_id) or ContextState(context_id=context_id)
    events = await store.contexts.list_events(context_id)
    undone = {_text(event.payload, "run_id") for event in events if event.event_type == UNDONE}
    # A reopened turn has ended more than once. The last end counts.
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


async def list_missing(store: Store, conversation: Conversation) -> list[RunRow]:
    """List the runs of the context that are missing from the log, oldest first. The last one may not have ended."""
    rows = await store.list_runs(context_id=conversation.state.context_id, limit=LOOKED_AT)
    turns = [row for row in rows if row.agent != SUMMARIZER]
    return list(takewhile(lambda row: row.run_id not in conversation.recorded, turns))[::-1]


def build_extra_input(conversation: Conversation, measures: Measures, *, shows_media: bool = False) -> ExtraInput:
    """Build the input of the next run. With `shows_media`, its model accepts pictures and documents."""
    return ExtraInput(
        facts=render_facts(conversation.facts, measures),
        summary=render_summary(conversation.state.summary, measures),
        conversation=build_messages(conversation.turns, measures, shows_media=shows_media),
    )


def get_measures(settings: Settings) -> Measures:
    limit = settings.model.max_context_tokens - settings.model.response_headroom_tokens
    return build_measures(settings.chat, limit=limit)


async def load_turn(store: Store, run_id: str) -> tuple[RunState, PastTurn]:
    """Load a turn from its journal."""
    entries = await read_entries(store, run_id)
    state = fold(run_id, entries)
    said = state.started.task if state.started else ""
    media = state.started.attachments if state.started else ()
    notes = _list_notes(entries)
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
    """Build the log event of an ended turn. Its message ID lets the store drop duplicates."""
    assert state.phase in FINAL
    return NewEvent(
        event_type=TURN,
        payload={
            "run_id": turn.run_id,
            "said": turn.said,
            "answer": turn.answer,
            "notes": list(turn.notes),
            **({"media": [dump_fields(part) for part in turn.media]} if turn.media else {}),
            "status": state.status,
            "cost_usd": state.cost_usd,
        },
        turn_number=number,
        agent_id=state.started.agent if state.started else "",
        # With the length of the journal: the store would drop the second end of a reopened turn as a duplicate.
        message_id=f"{turn.run_id}:{state.seq}",
    )


def build_undone_event(run_id: str) -> NewEvent:
    return NewEvent(event_type=UNDONE, payload={"run_id": run_id}, message_id=f"undone:{run_id}")


def build_stated_facts(facts: Iterable[KnownFact], *, turn: int) -> tuple[NewFact, ...]:
    """Build facts with the number of their turn, so that they are undone with it."""
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
        media=convert(media, tuple[MediaPart, ...]) if isinstance(media, list) else (),
    )


def _read_facts(facts: Sequence[Fact]) -> tuple[KnownFact, ...]:
    """Read the facts in order. A fact that the user asked to remember replaces an incidental one with the same key."""
    told = sorted((f for f in facts if f.bucket in (OWN_FACTS, TOLD_FACTS)), key=lambda f: (f.timestamp, f.key))
    known = [KnownFact(key=fact.key, text=_text(fact.value, "text"), is_own=fact.bucket == OWN_FACTS) for fact in told]
    own = {fact.key for fact in known if fact.is_own}
    return tuple(fact for fact in known if fact.is_own or fact.key not in own)


def _list_notes(entries: Sequence[Entry]) -> tuple[str, ...]:
    """List the calls of a turn with their status, and the questions to the user with the answers."""
    notes: dict[str, str] = {}
    asked: dict[str, str] = {}
    for entry in entries:
        match entry:
            case StepStarted() if entry.action.type in ("call_tool", "run_command"):
                name, arguments = name_call(entry.action)
                given = ", ".join(f"{key}={value}" for key, value in arguments.items())
                notes[entry.step_id] = one_line(f"{name}({given})", _MAX_NOTE_LENGTH)
            case StepFinished() if entry.step_id in notes:
                notes[entry.step_id] += f": {entry.status}"
            case UserMessageAdded():
                notes[entry.message_id] = one_line(f"the user added: {entry.text}", _MAX_NOTE_LENGTH)
            case InputAsked():
                asked[entry.request_id] = one_line(f"asked the person: {entry.question}", _MAX_NOTE_LENGTH)
            case InputGiven() if entry.request_id in asked:
                answers = ", ".join(f"{key}={value}" for key, value in entry.values.items())
                told = one_line(f"They answered: {answers}", _MAX_NOTE_LENGTH)
                notes[entry.request_id] = f"{asked[entry.request_id]} {told}"
            case _:
                pass
    return tuple(notes.values())[-MAX_NOTES:]


def _text(value: JsonValue, key: str) -> str:
    found = value.get(key, "") if isinstance(value, dict) else value
    return found if isinstance(found, str) else str(cast("object", found))


class _Draft(Struct, frozen=True, kw_only=True):
    text: str
    facts: tuple[KnownFact, ...] = ()
    run_id: str = ""
    cost_usd: float = 0.0


# The summary is a run, so that its request and cost are recorded and `allowed_models` applies. It can't loop: each turn
# is summarized once, the summary has a fixed size, and if the model fails, extracts of the conversation are used.
async def summarize_if_due(
    runtime: Runtime, conversation: Conversation, *, agent: ResolvedAgent, watch: DriveOptions, is_wanted: bool = False
) -> Conversation:
    """Summarize the conversation if it is long, and return the conversation for the next turn.

    With `is_wanted`, on request of the user, all turns but the last one are summarized.
    """
    measures = get_measures(agent.host.settings)
    count = count_folded(conversation.turns, measures, is_crowded=conversation.is_crowded)
    count = max(count, len(conversation.turns) - 1) if is_wanted else count
    if count <= 0:
        return conversation
    old = conversation.turns[:count]
    draft = await _ask_model(runtime, conversation, old, agent=agent, watch=watch)
    draft = draft or _Draft(text=_extract(conversation, old, measures))
    clean = build_host_cleaner(runtime.host).text
    text = cut(clean(draft.text), measures.summary_tokens)[:MAX_SUMMARY_SIZE_CHARS]
    known = {fact.key for fact in conversation.facts}
    # Known facts stay as they are, because most are in the words of the user.
    told = [fact for fact in draft.facts if fact.key not in known]
    change = ContextChange(
        summary=NewSummary(text=text, upto=old[-1].number),
        facts=build_stated_facts([replace(fact, text=clean(fact.text)) for fact in told], turn=old[-1].turn),
        events=(
            NewEvent(
                event_type=SUMMARIZED,
                payload={"turns": count, "run_id": draft.run_id, "cost_usd": draft.cost_usd},
                turn_number=conversation.state.current_turn,
            ),
        ),
    )
    await runtime.store.contexts.commit(conversation.state.context_id, change)
    return await read_conversation(runtime.store, conversation.state.context_id)


async def _ask_model(
    runtime: Runtime, conversation: Conversation, old: Sequence[PastTurn], *, agent: ResolvedAgent, watch: DriveOptions
) -> _Draft | None:
    """Let the model write a summary; None without a model or if it failed."""
    if agent.model.provider == OFFLINE and runtime.host.provider is None:
        return None
    summarizer = build_summarizer(runtime, agent)
    measures = get_measures(agent.host.settings)
    request = RunRequest(
        # By our estimate, English has about 1.7 tokens per word, so half as many words fit.
        task=SUM_UP_TASK.format(words=measures.summary_tokens // 2),
        extra_context=_render(conversation, old, measures),
        context_id=conversation.state.context_id,
    )
    # Without sinks and askers: its reply is not part of the chat, and a summary must not wait for the user.
    quiet = DriveOptions(stopper=watch.stopper, report=watch.report)
    try:
        state = await runtime.start_as(summarizer, request, quiet)
    except MissingKey as missing:
        watch.report(f"The model did not sum up the conversation ({missing.message}); its own words are kept instead")
        return None
    # It has no asker, so it may have paused at a question or limit, and no user would ever continue it.
    if state.phase not in FINAL:
        state = await runtime.cancel(state.run_id, by="chat")
    draft = _read(state)
    if draft is None:
        reason = state.failure.message if state.failure else "its reply says nothing"
        watch.report(f"The model did not sum up the conversation ({reason}); its own words are kept instead")
    return draft


def build_summarizer(runtime: Runtime, agent: ResolvedAgent) -> ResolvedAgent:
    """Build an agent without tools and with a model of the chat's agent. Raises `UsageError` for another model."""
    named = agent.host.settings.chat.summary_model
    host = resolve_agent(runtime.host, agent.id, model=named).host if named else agent.host
    host = host.with_runtime(max_turns=MAX_SUMMARIZER_TURNS)
    file = host.workspace / ".agent" / "agents" / SUMMARIZER / "AGENT.md"
    return restore_agent(host, SUMMARIZER, SUMMARIZER_AGENT, file=file)


def _read(state: RunState) -> _Draft | None:
    if state.phase != "DONE" or len(state.result.strip()) < MIN_SUMMARY_CHARACTERS:
        return None
    text, listed = _split_facts(state.result)
    facts = parse_facts(listed)
    return (
        _Draft(text=text.strip(), facts=facts, run_id=state.run_id, cost_usd=state.cost_usd) if text.strip() else None
    )


def _split_facts(reply: str) -> tuple[str, str]:
    """Split a reply at the line before the facts, into the text before it and the facts."""
    lines = reply.splitlines()
    for at, line in enumerate(lines):
        if line.strip().strip("#* ").casefold() == FACTS_LINE:
            return "\n".join(lines[:at]), "\n".join(lines[at + 1 :])
    return reply, ""


def _render(conversation: Conversation, old: Sequence[PastTurn], measures: Measures) -> str:
    """Render the conversation for the summarizer, within its size limit."""
    return "\n\n".join(
        [
            f"## Summary so far\n{conversation.state.summary or '(none)'}",
            f"## Facts that are kept\n{render_facts(conversation.facts, measures) or '(none)'}",
            f"## Turns since\n{cut(render_transcript(old, measures), measures.fold_tokens * 5 // 4)}",
        ]
    )


def _extract(conversation: Conversation, old: Sequence[PastTurn], measures: Measures) -> str:
    events = [
        _as_event(turn, who, text) for turn in old for who, text in (("person", turn.said), ("agent", turn.answer))
    ]
    # Three characters per token: the estimate is about 3.5 for English and lower for other text.
    return summarize_by_extraction(
        conversation.state.summary, events, max_characters=min(MAX_SUMMARY_SIZE_CHARS, measures.summary_tokens * 3)
    )


def _as_event(turn: PastTurn, who: str, text: str) -> ContextEvent:
    return ContextEvent(
        number=turn.number,
        event_type=who,
        payload=text,
        turn_number=turn.turn,
        agent_id="",
        message_id="",
        timestamp=NEVER,
    )
