"""Sum up the older turns of a conversation: by a model, in a run of its own, or from their own words.

A run, so that its request and its cost are on record like any other and `allowed_models` holds for it. It cannot go
round in circles: a turn is summed up once, the summary has a fixed size, and where a model fails or says too little the
words of the conversation are used instead, at once.
"""

from collections.abc import Sequence
from dataclasses import replace

from metier.context.conversation import (
    KnownFact,
    Measures,
    PastTurn,
    count_folded,
    cut,
    render_facts,
    render_transcript,
)
from metier.context.told_facts import parse_facts
from metier.dataclass import dataclass
from metier.engine.phases import FINAL
from metier.engine.state import RunState
from metier.providers.options import OFFLINE
from metier.runtime.chat.conversations import (
    SUMMARIZED,
    Conversation,
    build_told_facts,
    get_measures,
    read_conversation,
)
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, Watch
from metier.runtime.workspace.agents import SUMMARIZER, AgentInForce, resolve_agent, restore_agent
from metier.store.contexts import (
    MAX_SUMMARY_SIZE_CHARS,
    NEVER,
    ContextChange,
    ContextEvent,
    NewEvent,
    NewSummary,
)
from metier.store.summaries import summarize_by_extraction

AGENT = b"""---
name: Summarizer
tools: []
skills: []
tasks: []
---

You keep the record of a conversation between a person and an agent. Answer with text alone and call no tool.
"""
TASK = """Below are the summary of a conversation so far, the facts that are kept beside it, and the turns since.
Write the new summary of all of it: what the person wants, what was decided and why, what was done (names of files,
commands and numbers exactly), what is still open. Leave out what is over and done with. At most {words} words.

Then, if the turns hold facts that must stay word for word (names, numbers, preferences, standing instructions) and that
are not kept yet, write a line `Facts:` and one line `- name: fact` for each.
"""
FACTS_LINE = "facts:"
FEWEST_CHARACTERS = 20
"""A summary that is shorter says nothing."""
MOST_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    text: str
    facts: tuple[KnownFact, ...] = ()
    run_id: str = ""
    cost_usd: float = 0.0


async def sum_up_if_due(
    runtime: Runtime, conversation: Conversation, *, agent: AgentInForce, watch: Watch, is_wanted: bool = False
) -> Conversation:
    """The conversation as the next turn shall know it; the same where it is short enough.

    `is_wanted`: the person asks for it, so all turns but the last one are summed up.
    """
    measures = get_measures(agent.place.settings)
    count = count_folded(conversation.turns, measures, is_crowded=conversation.is_crowded)
    count = max(count, len(conversation.turns) - 1) if is_wanted else count
    if count <= 0:
        return conversation
    old = conversation.turns[:count]
    draft = await _ask_model(runtime, conversation, old, agent=agent, watch=watch)
    draft = draft or _Draft(text=_extract(conversation, old, measures))
    clean = build_place_cleaner(runtime.place).text
    text = cut(clean(draft.text), measures.summary_tokens)[:MAX_SUMMARY_SIZE_CHARS]
    known = {fact.key for fact in conversation.facts}
    told = [fact for fact in draft.facts if fact.key not in known]
    change = ContextChange(
        summary=NewSummary(text=text, upto=old[-1].number),
        facts=build_told_facts([replace(fact, text=clean(fact.text)) for fact in told], turn=old[-1].turn),
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
    runtime: Runtime, conversation: Conversation, old: Sequence[PastTurn], *, agent: AgentInForce, watch: Watch
) -> _Draft | None:
    """Nothing where there is no model, or none that could do it."""
    if agent.model.provider == OFFLINE and runtime.place.provider is None:
        return None
    summarizer = build_summarizer(runtime, agent)
    measures = get_measures(agent.place.settings)
    request = RunRequest(
        task=TASK.format(words=measures.summary_tokens // 2),
        extra_context=_render(conversation, old, measures),
        context_id=conversation.state.context_id,
    )
    quiet = Watch(stopper=watch.stopper, report=watch.report)
    state = await runtime.start_as(summarizer, request, quiet)
    if state.phase not in FINAL:
        state = await runtime.cancel(state.run_id, by="chat")
    draft = _read(state)
    if draft is None:
        reason = state.failure.message if state.failure else "its reply says nothing"
        watch.report(f"The model did not sum up the conversation ({reason}); its own words are kept instead")
    return draft


def build_summarizer(runtime: Runtime, agent: AgentInForce) -> AgentInForce:
    """An agent without tools, with the models that the chat's agent may use. Raises `UsageError` for another one."""
    named = agent.place.settings.chat.summary_model
    place = resolve_agent(runtime.place, agent.id, model=named).place if named else agent.place
    options = place.settings.runtime.model_copy(update={"max_turns": MOST_TURNS})
    place = replace(place, settings=place.settings.model_copy(update={"runtime": options}))
    file = place.workspace / ".agent" / "agents" / SUMMARIZER / "AGENT.md"
    return restore_agent(place, SUMMARIZER, AGENT, file=file)


def _read(state: RunState) -> _Draft | None:
    if state.phase != "DONE" or len(state.result.strip()) < FEWEST_CHARACTERS:
        return None
    text, _, listed = _split_facts(state.result)
    facts = parse_facts(listed)
    return (
        _Draft(text=text.strip(), facts=facts, run_id=state.run_id, cost_usd=state.cost_usd) if text.strip() else None
    )


def _split_facts(reply: str) -> tuple[str, str, str]:
    """What stands before, at and behind the line that announces facts."""
    lines = reply.splitlines()
    for at, line in enumerate(lines):
        if line.strip().strip("#* ").casefold() == FACTS_LINE:
            return "\n".join(lines[:at]), line, "\n".join(lines[at + 1 :])
    return reply, "", ""


def _render(conversation: Conversation, old: Sequence[PastTurn], measures: Measures) -> str:
    """Within what a turn may be told, so that it fits wherever a turn does."""
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
    return summarize_by_extraction(
        conversation.state.summary, events, most_characters=min(MAX_SUMMARY_SIZE_CHARS, measures.summary_tokens * 3)
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
