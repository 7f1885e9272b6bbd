"""What a person said "always" to in a conversation. It is a fact of the context, so it lasts as long as that does."""

import hashlib

from metier.context.decoder import build_step
from metier.engine.calls import build_memory_key
from metier.runtime.chat.chats import Chat
from metier.runtime.questions.approvals import ApprovalQuestion
from metier.store.contexts import MAX_POCKET_FACTS_PER_BUCKET, ContextChange, NewFact

ALWAYS = "always"


async def list_always(chat: Chat) -> list[str]:
    """What is not asked about any more, in words."""
    facts = await chat.runtime.store.contexts.list_facts(chat.context_id, bucket=ALWAYS)
    return [str(fact.value) for fact in facts]


async def is_always(chat: Chat, question: ApprovalQuestion) -> bool:
    """The person said "always" to a call like this one."""
    return _build_key(question) in await list_always(chat)


async def keep_always(chat: Chat, question: ApprovalQuestion) -> None:
    """From now on a call like this one is not asked about in this conversation; what is denied stays denied."""
    if len(await list_always(chat)) >= MAX_POCKET_FACTS_PER_BUCKET:
        return  # the oldest would be dropped; the person is asked once more instead
    key = _build_key(question)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    change = ContextChange(facts=(NewFact(bucket=ALWAYS, key=name, value=key),))
    await chat.runtime.store.contexts.commit(chat.context_id, change)


def _build_key(question: ApprovalQuestion) -> str:
    """As far as "always in this run" extends, see `build_memory_key`."""
    return build_memory_key(build_step(question.tool, question.arguments, call_id=""))
