"""A conversation as Markdown, every turn from its journal."""

from metier.runtime.chats import Chat
from metier.runtime.cleaning import build_place_cleaner


async def render_markdown(chat: Chat) -> str:
    """Turns that were taken back are left out; secrets are masked."""
    clean = build_place_cleaner(chat.runtime.place).text
    lines = [f"# Conversation {chat.context_id}", ""]
    facts = await chat.list_facts()
    if facts:
        lines += ["## Facts", "", *(f"- {fact.key}: {fact.text}" for fact in facts), ""]
    for number, (row, turn) in enumerate(await chat.list_turns(), start=1):
        model = f", {row.model}" if row.model else ""
        lines += [f"## Turn {number}", "", f"_{row.created_at:%Y-%m-%d %H:%M} UTC{model}, run {row.run_id}_", ""]
        lines += ["**You:**", "", clean(turn.said), ""]
        lines += [*(f"- {clean(note)}" for note in turn.notes), *([""] if turn.notes else [])]
        lines += [f"**{row.agent or 'Agent'}:**", "", clean(turn.answer), ""]
    return "\n".join(lines).rstrip()
