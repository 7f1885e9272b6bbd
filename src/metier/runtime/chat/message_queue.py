"""Messages that the user sends to a chat while a turn is running, until a turn takes them.

They are stored, so that they survive the death of the process.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from pydantic import JsonValue

from metier.engine.services import UserMessage
from metier.ids import get_user
from metier.runtime.chat.commands import MARK
from metier.runtime.runs import Runtime
from metier.store.contexts import MAX_POCKET_FACTS_PER_BUCKET, ContextChange, Fact, NewFact

BUCKET = "queued"
"""Bucket of facts with the queued messages of a conversation, by message ID."""


class QueuedMessage(Struct, frozen=True, kw_only=True):
    message_id: str
    """ID of the message, and of its run if it becomes a turn. So it can become a turn only once."""
    context_id: str
    text: str
    steers: bool = True
    """True if the running turn may take it before its next model request."""


class MessageQueue:
    """The queue of one chat, which is also the `MessageInbox` of the running turn."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._messages: deque[QueuedMessage] = deque()
        self._removed: list[QueuedMessage] = []
        """Messages that are still to be removed from the store."""

    def __len__(self) -> int:
        return len(self._messages)

    def list_texts(self) -> list[str]:
        return [message.text for message in self._messages]

    async def load(self, context_id: str, get_last_turn: Callable[[], Awaitable[str]]) -> None:
        """Read the messages that an earlier process left."""
        store = self._runtime.store
        facts = await store.contexts.list_facts(context_id, bucket=BUCKET)
        if not facts:
            return
        # The process may have died after a turn took a message and before it was removed from the store.
        known = (await self._runtime.read(await get_last_turn())).message_ids
        for fact in sorted(facts, key=_get_number):
            value = fact.value if isinstance(fact.value, dict) else {}
            message = QueuedMessage(
                message_id=fact.key,
                context_id=context_id,
                text=str(value.get("text", "")),
                steers=bool(value.get("steers", True)),
            )
            is_taken = fact.key in known or await store.find_run(fact.key) is not None
            (self._removed if is_taken else self._messages).append(message)
        await self.flush()

    async def add(self, context_id: str, text: str, *, steers: bool, is_stored: bool) -> None:
        host = self._runtime.host
        message = QueuedMessage(
            message_id=host.ids.run_id(host.clock.now()), context_id=context_id, text=text, steers=steers
        )
        # The store drops the oldest facts of a full bucket, so further messages are kept in memory only.
        if is_stored and len(self._messages) < MAX_POCKET_FACTS_PER_BUCKET:
            # IDs of the same second have no order, so the time orders the messages.
            value: JsonValue = {"text": text, "steers": steers, "number": time.time_ns()}
            fact = NewFact(bucket=BUCKET, key=message.message_id, value=value)
            await self._runtime.store.contexts.commit(context_id, ContextChange(facts=(fact,)))
        self._messages.append(message)

    def put_first(self, context_id: str, text: str) -> None:
        """Add a message at the front, in memory only."""
        host = self._runtime.host
        message_id = host.ids.run_id(host.clock.now())
        self._messages.appendleft(QueuedMessage(message_id=message_id, context_id=context_id, text=text, steers=False))

    def pop(self) -> QueuedMessage:
        """Take the first message. It stays in the store until `flush`."""
        message = self._messages.popleft()
        self._removed.append(message)
        return message

    def leave_to_next(self) -> None:
        """Forget the messages here and leave them in the store for the next process."""
        self._messages.clear()

    def clear(self) -> None:
        self._removed += self._messages
        self._messages.clear()

    async def flush(self) -> None:
        """Remove messages from the store that were taken."""
        removed, self._removed = self._removed, []
        for context_id in dict.fromkeys(message.context_id for message in removed):
            forgotten = tuple((BUCKET, each.message_id) for each in removed if each.context_id == context_id)
            await self._runtime.store.contexts.commit(context_id, ContextChange(forgotten=forgotten))

    def list_pending(self) -> Sequence[UserMessage]:
        """List the first messages that the running turn may take. It stops at a command, to preserve the order."""
        pending: list[UserMessage] = []
        for message in self._messages:
            if not message.steers or message.text.startswith((MARK, "/")):
                break
            pending.append(UserMessage(message_id=message.message_id, text=message.text, sent_by=get_user()))
        return pending

    async def mark_taken(self, message_ids: Sequence[str]) -> None:
        taken = [message for message in self._messages if message.message_id in message_ids]
        self._messages = deque(message for message in self._messages if message.message_id not in message_ids)
        self._removed += taken
        await self.flush()


def _get_number(fact: Fact) -> int:
    number = fact.value.get("number", 0) if isinstance(fact.value, dict) else 0
    return number if isinstance(number, int) else 0
