"""`Idempotency-Key`: a POST that a client repeats, after a lost response or a killed server, takes effect once.

The key, a digest of the request and its response are in the store, so any server process can answer the repetition. The
ID of a run is derived from the key: if the server was killed between starting the run and responding, the repetition
finds that run.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Annotated, cast

from fastapi import Header, Request
from msgspec import Struct
from pydantic import JsonValue

from metier.ids import format_run_id
from metier.server.problems import HttpProblem
from metier.server.state import ServerState, get_state, get_user
from metier.store.contexts import Completion, ContextChange, NewFact
from metier.store.failures import DuplicateMessageError

# A process that was killed at work blocks the key for this long.
CLAIM_SECONDS = 60.0
LIFETIME_SECONDS = 24 * 3600.0
_BUCKET = "request"
_PREFIX = "http-"
_OWN = re.compile(r"http-[0-9a-f]{64}")
"""The context IDs that `_describe` builds. Names of conversations may also start with the prefix."""
_MAX_KEYS = 100_000

Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        description="A random text of yours: the same request with the same key happens once, and is answered again.",
    ),
]


class Once(Struct, frozen=True, kw_only=True):
    """The request and response of an idempotency key."""

    context_id: str
    """Empty if the request has no key."""
    started_at: datetime

    def make_run_id(self) -> str:
        """Return the ID of the run that the request starts, the same for each repetition; empty without a key."""
        if not self.context_id:
            return ""
        return format_run_id(self.started_at, hashlib.sha256(self.context_id.encode()).digest()[:6])


type Document = dict[str, JsonValue]
type Work = Callable[[Once], Awaitable[Document]]


async def run_once(request: Request, key: str, work: Work) -> Document:
    """Do the work, or return its earlier result. Raises `HttpProblem` if the key was used for another request.

    Failures are not stored: the client can try again with the same key.
    """
    state = get_state(request)
    now = state.host.clock.now()
    if not key:
        return await work(Once(context_id="", started_at=now))
    context_id, wanted = await _describe(request, key)
    contexts = state.runtime.store.contexts
    fact = await contexts.find_fact(context_id, _BUCKET, "what")
    if fact is None:
        words: dict[str, JsonValue] = {"wanted": wanted, "at": now.isoformat()}
        noted = NewFact(bucket=_BUCKET, key="what", value=words, ttl_seconds=LIFETIME_SECONDS)
        await contexts.commit(context_id, ContextChange(facts=(noted,)))
        # Read it back: of two requests at the same time, both must use the digest and time that were stored.
        fact = await contexts.find_fact(context_id, _BUCKET, "what")
    assert fact is not None, "it was written above"
    saved = cast("dict[str, str]", fact.value)  # written above
    if saved["wanted"] != wanted:
        raise HttpProblem(
            422, "idempotency_key_reused", "This key was used for another request", hint="Make a key for each request"
        )
    return await _claim_and_work(
        state, Once(context_id=context_id, started_at=datetime.fromisoformat(saved["at"])), work
    )


async def _claim_and_work(state: ServerState, once: Once, work: Work) -> Document:
    contexts = state.runtime.store.contexts
    owner = state.runtime.host.owner
    try:
        claim = await contexts.claim_message(once.context_id, _BUCKET, owner=owner, seconds=CLAIM_SECONDS)
    except DuplicateMessageError as known:
        if known.is_done:
            return cast("Document", known.result)  # the result of an earlier call of this function
        raise HttpProblem(
            409, "request_under_way", "The same request is under way", hint="Send it again in a moment"
        ) from known
    try:
        result = await work(once)
    except BaseException:  # also if the client disconnects, or the key would be locked until the claim expires
        await contexts.release_claim(claim)
        raise
    # After a kill before this line, a repetition does the work again when the claim has expired: a started run is found
    # by its ID, and a second decision is answered with 409.
    await contexts.commit(once.context_id, ContextChange(completion=Completion(claim=claim, result=result)))
    return result


async def delete_old_keys(state: ServerState) -> None:
    """Delete the records of requests older than a day."""
    contexts = state.runtime.store.contexts
    limit = state.host.clock.now() - timedelta(seconds=LIFETIME_SECONDS)
    for context in await contexts.list_contexts(limit=_MAX_KEYS):
        if _OWN.fullmatch(context.context_id) and context.updated_at < limit:
            await contexts.delete_context(context.context_id)


async def _describe(request: Request, key: str) -> tuple[str, str]:
    """Return the context ID of a key and the digest of the request. Each user has their own keys."""
    user = get_user(request)
    body = await request.body()
    wanted = hashlib.sha256(json.dumps([request.method, request.url.path]).encode() + b"\n" + body).hexdigest()
    # As JSON, because a separator could occur in a name or a key, and two users would share one.
    context = hashlib.sha256(json.dumps([user.name, key]).encode()).hexdigest()
    return f"{_PREFIX}{context}", wanted
