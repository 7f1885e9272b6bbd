"""The interface of conversations between turns: state, events, facts and messages.

Every change is one `ContextChange`, written in one transaction or not at all. Guarantees:

- A state is only replaced if its version is the expected one. Of two concurrent writers, one gets
  `VersionConflictError`.
- A message is claimed by one worker at a time. Its result is stored in the transaction that completes it, so a crashed
  worker loses nothing, and a repeated message gets the stored result.
- An expired fact is never returned, even before it is deleted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from pydantic import JsonValue

from metier.decisions import TASK_STATES, TaskState
from metier.errors import UsageError
from metier.store.failures import BucketFull, ClaimLost, DuplicateMessageError, VersionConflictError

# Dataclasses, not Structs: user code calls `dataclasses.replace` with them before `put_state` and `commit`.

MAX_EVENTS_PER_CONTEXT = 100
MAX_POCKET_FACTS_PER_BUCKET = 50
MAX_SUMMARY_SIZE_CHARS = 10_000

ENDED: tuple[TaskState, ...] = ("completed", "failed", "timeout", "canceled")
"""Final states. Resume tokens of these contexts are rejected."""
RESUMABLE: frozenset[TaskState] = frozenset({"input_required", "delegating", "paused"})
"""States of contexts that wait for an answer or a child. Their events and facts are kept beyond the usual limits."""

NEVER = datetime.min.replace(tzinfo=UTC)
"""Creation time of a context that is not stored."""

_MAX_LENGTHS: Mapping[str, int] = {
    "context_id": 255,
    "event_type": 100,
    "agent_id": 255,
    "message_id": 255,
    "bucket": 100,
    "key": 255,
    "agent_state_detail": 50,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """The state of a conversation."""

    context_id: str
    version: int = 0
    """Incremented by every change; 0 for a context that is not stored."""
    current_turn: int = 1
    task_state: TaskState = "pending"
    agent_state_detail: str = ""
    input_request: JsonValue = None
    """The open question, if the conversation waits for an answer."""
    summary: str = ""
    """Replaced together with the state, unless newer events have been summarized since that state was read."""
    summarized_to: int = 0
    """Number of the last event in the summary."""
    created_at: datetime = NEVER
    updated_at: datetime = NEVER

    @property
    def context_version(self) -> int:
        return self.version

    @property
    def is_resumable(self) -> bool:
        return self.task_state in RESUMABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    event_type: str
    payload: JsonValue
    turn_number: int = 1
    agent_id: str = ""
    message_id: str = ""
    """A second event with the same message id is ignored, so that a turn can be repeated after a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEvent:
    number: int
    """Consecutive within the context, in the order of commits."""
    event_type: str
    payload: JsonValue
    turn_number: int
    agent_id: str
    message_id: str
    timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    bucket: str
    key: str
    value: JsonValue
    ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    bucket: str
    key: str
    value: JsonValue
    timestamp: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The temporary right of one worker to process a message."""

    context_id: str
    message_id: str
    owner: str
    token: int
    """Grows with every claim. Only the worker with the latest claim can complete the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer to a message."""

    claim: Claim | None
    """None if something else keeps other workers out, such as the lease of a run."""
    result: JsonValue
    message_id: str = ""
    """Required without a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    message_id: str
    is_done: bool
    result: JsonValue = None
    owner: str = ""
    """The worker with the claim; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSummary:
    text: str
    upto: int
    """Number of the last summarized event. An older summary never replaces a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextChange:
    """Changes to write in one transaction. They create the context if it is missing."""

    state: ContextState | None = None
    expected_version: int | None = None
    """The version that `state` replaces, by default its own."""
    events: tuple[NewEvent, ...] = ()
    facts: tuple[NewFact, ...] = ()
    forgotten: tuple[tuple[str, str], ...] = ()
    """Bucket and key of facts to delete."""
    summary: NewSummary | None = None
    completion: Completion | None = None

    @property
    def is_durable(self) -> bool:
        """Return True if other processes act on the change, so that it must survive a power failure."""
        return self.state is not None or self.completion is not None

    @property
    def base_version(self) -> int:
        if self.expected_version is not None:
            return self.expected_version
        return self.state.version if self.state is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redemption:
    """A verified resume token that can be consumed."""

    version: int
    turn: int
    digest: str = field(repr=False)
    """Digest of the token and the message that may redeem it again after a crash. Empty if there is no message."""


class ContextStore(Protocol):
    """Conversations. Part of every `store.base.Store`."""

    async def find_state(self, context_id: str) -> ContextState | None: ...

    async def commit(self, context_id: str, change: ContextChange) -> ContextState:
        """Write a change. Raises `VersionConflictError`, `ClaimLost`, `BucketFull`, `StoreFull`."""
        ...

    async def list_events(
        self, context_id: str, *, after: int = 0, limit: int = MAX_EVENTS_PER_CONTEXT
    ) -> list[ContextEvent]:
        """List the last `limit` events with a number above `after`, oldest first."""
        ...

    async def find_fact(self, context_id: str, bucket: str, key: str) -> Fact | None: ...

    async def list_facts(self, context_id: str, *, bucket: str = "") -> list[Fact]:
        """List the facts by bucket and key."""
        ...

    async def claim_message(self, context_id: str, message_id: str, *, owner: str, seconds: float) -> Claim:
        """Claim a message. Raises `DuplicateMessageError` if it is done, or a worker has claimed it."""
        ...

    async def renew_claim(self, claim: Claim, *, seconds: float) -> None:
        """Extend a claim. Raises `ClaimLost`."""
        ...

    async def release_claim(self, claim: Claim) -> None:
        """Release a message without a result. Releasing a lost claim does nothing."""
        ...

    async def find_message(self, context_id: str, message_id: str) -> StoredMessage | None: ...

    async def redeem(self, context_id: str, redemption: Redemption) -> ContextState | None:
        """Consume a resume token by incrementing the version. Return None if it is stale or the context has ended.

        The same message can redeem it again until a message of the context is completed with a new state. Otherwise a
        worker that crashed after its turn was recorded would block the conversation.
        """
        ...

    async def delete_context(self, context_id: str) -> bool:
        """Delete a context with its events, facts and messages. Return False if there was none."""
        ...

    async def list_contexts(self, *, task_state: TaskState | None = None, limit: int = 100) -> list[ContextState]:
        """List contexts, most recently changed first."""
        ...


def check_names(**names: str) -> None:
    """Raise `UsageError` for a name that is empty or too long for a store."""
    for name, value in names.items():
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  callers may not check types
            raise UsageError(f"A {name} must be text, not {value!r}", hint="Give it a short name")
        if not value:
            raise UsageError(f"A {name} must not be empty", hint="Give it a short name")
        _check_length(name, value)


def check_change(context_id: str, change: ContextChange) -> None:
    """Raise `UsageError` for an invalid change."""
    check_names(context_id=context_id)
    for event in change.events:
        check_names(event_type=event.event_type)
        _check_length("agent_id", event.agent_id)
        _check_length("message_id", event.message_id)
    for fact in change.facts:
        check_names(bucket=fact.bucket, key=fact.key)
        if fact.ttl_seconds is not None and fact.ttl_seconds <= 0:
            raise UsageError(f"Fact {fact.key!r} would expire immediately", hint="Give it a positive ttl_seconds")
    if change.state is not None:
        _check_state(context_id, change.state)
    if change.summary is not None:
        _check_summary(change.summary.text)
    if change.completion is not None and change.completion.claim is None:
        check_names(message_id=change.completion.message_id)


def _check_state(context_id: str, state: ContextState) -> None:
    # Callers set it with `dataclasses.replace`, which checks nothing.
    if state.task_state not in TASK_STATES:
        raise UsageError(f"Unknown task state {state.task_state!r}", hint=f"Use one of {', '.join(TASK_STATES)}")
    _check_length("agent_state_detail", state.agent_state_detail)
    _check_summary(state.summary)
    if state.context_id != context_id:
        raise UsageError(
            f"The state of context {state.context_id!r} cannot be put into {context_id!r}",
            hint="Start from `get_state` of the same store",
        )


def _check_summary(text: str) -> None:
    if len(text) > MAX_SUMMARY_SIZE_CHARS:
        raise UsageError(
            f"A summary of {len(text)} characters is too long", hint=f"Keep it within {MAX_SUMMARY_SIZE_CHARS}"
        )


def _check_length(name: str, value: str) -> None:
    if len(value) > _MAX_LENGTHS[name]:
        raise UsageError(
            f"A {name} of {len(value)} characters is too long", hint=f"Keep it within {_MAX_LENGTHS[name]}"
        )


def dump_json(value: JsonValue) -> str:
    """Encode a value. Raises `UsageError` if JSON can't represent it."""
    try:
        # NaN and infinity are not JSON: PostgreSQL would reject them, but SQLite would store them.
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise UsageError(f"This value cannot be stored as JSON: {error}", hint="Store plain JSON values") from error


def load_json(text: str) -> JsonValue:
    return json.loads(text)


def build_conflict(context_id: str, *, expected: int, found: int) -> VersionConflictError:
    return VersionConflictError(
        f"Context {context_id!r} has version {found}, not {expected}; nothing was written",
        hint="Read the state again, then retry",
    )


def build_duplicate(message: StoredMessage) -> DuplicateMessageError:
    if message.is_done:
        fact, hint = "was already answered", "Use the stored result"
    else:
        fact, hint = f"is being processed by {message.owner!r}", "Wait for its result"
    return DuplicateMessageError(
        f"Message {message.message_id!r} {fact}", hint=hint, is_done=message.is_done, result=message.result
    )


def build_lost_claim(claim: Claim) -> ClaimLost:
    return ClaimLost(
        f"{claim.owner!r} no longer has the claim on message {claim.message_id!r}; nothing was written",
        hint="Another worker took over; use its stored result",
    )


def build_full_bucket(context_id: str, bucket: str) -> BucketFull:
    return BucketFull(
        f"Bucket {bucket!r} of waiting context {context_id!r} already has {MAX_POCKET_FACTS_PER_BUCKET} facts",
        hint="Delete a fact, or use another bucket",
    )
