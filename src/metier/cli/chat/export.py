"""A conversation as Markdown, every turn from its journal."""

from metier.runtime.chat.chats import Chat
from metier.runtime.cleaning import build_place_cleaner


async def render_markdown(chat: Chat) -> str:
    """Turns that were taken back are left out; secrets are masked."""
    clean = build_place_cleaner(chat.runtime.place).text
    lines = [f"# Conversation {chat.context_id}", ""]
    facts = await chat.list_facts()
    if facts:
        lines += ["## Facts", "", *(f"- {fact.key}: {fact.text}" for fact in facts), ""]
    for number, (state, turn) in enumerate(await chat.list_turns(), start=1):
        who = state.started.agent if state.started else ""
        model = state.started.model if state.started else "no model"
        lines += [f"## Turn {number}", "", f"_Run {state.run_id}, answered by {model}_", ""]
        lines += ["**You:**", "", clean(turn.said), ""]
        lines += [*(f"- {clean(note)}" for note in turn.notes), *([""] if turn.notes else [])]
        lines += [f"**{who or 'Agent'}:**", "", clean(turn.answer), ""]
    return "\n".join(lines).rstrip()
