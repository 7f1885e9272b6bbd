"""Skills as agents for Python programs: `adapter.invoke`.

adapter = metier.create_agent_adapter(metier.create_executor("."))
response = adapter.invoke("schema-infer", {}, "my-context")
if response.state == TaskState.INPUT_REQUIRED:
    response = adapter.invoke("schema-infer", {"data": …}, "my-context", resume=True)

These calls are not steps of a run: there is no journal, no lease and no policy. Instead, a worker
claims a message in the store while it answers it, and a resume token continues a conversation.
"""

import os
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.answers import build_failure
from metier.capabilities.conversation import Conversation, ConversationStore, TurnEnd
from metier.capabilities.executor import Capability, SkillExecutor, run_blocking
from metier.capabilities.protocol import AgentResponse, TaskState
from metier.capabilities.skill_delegation import DelegationRequest, DelegationRouter, Lineage
from metier.capabilities.turns import Conversations, ConversationTurn, NextTurn, TurnRequest
from metier.store.backend import open_store
from metier.store.base import keep_renewed
from metier.store.failures import DuplicateMessageError, ResumeTokenRefused, VersionConflictError
from metier.store.resume_tokens import ResumeKeys, TokenSubject, check_token, load_resume_keys
from metier.store.state_store import StateOptions

CLAIM_SECONDS = 20.0
RENEWAL_SECONDS = 5.0
"""A claim survives three failed renewals; a message of a killed worker can be claimed again after `CLAIM_SECONDS`."""


class AgentAdapter(Struct, frozen=True, kw_only=True):
    """Skills as agents: turns with states, on top of an executor. Created by `metier.create_agent_adapter`."""

    executor: SkillExecutor
    options: StateOptions
    routes: bool = False
    """Skills may delegate to each other."""
    router: DelegationRouter | None = None
    """Overrides the adapter's own router."""

    def invoke(
        self,
        skill: str,
        inputs: dict[str, JsonValue],
        context_id: str,
        *,
        resume: bool = False,
        resume_token: str = "",
        message_id: str = "",
    ) -> AgentResponse:
        """Take one turn and wait for it.

        Raises `DuplicateMessageError`, `ResumeTokenRefused`, `VersionConflictError`, `SkillNotFound`.
        """
        request = TurnRequest(
            skill=skill,
            inputs=inputs,
            context_id=context_id,
            resume=resume or bool(resume_token),
            resume_token=resume_token,
            message_id=message_id,
        )
        return run_blocking(self.take_turn, request)

    async def take_turn(self, request: TurnRequest) -> AgentResponse:
        options = self.options
        # A store per call: `invoke` runs in an event loop of its own, and connections are bound to their loop.
        store = await open_store(options.store, runs=options.runs, environ=options.environ, clock=options.clock)
        try:
            conversations = ClaimedConversations(
                executor=self.executor,
                contexts=store.contexts,
                redactor=options.redactor,
                keys=load_resume_keys(options.runs, options.environ),
                owner=_name_owner(),
                clock=options.clock,
                router=self.router,
            )
            if self.routes and self.router is None:
                conversations = replace(conversations, router=ConversationRouter(conversations))
            return await conversations.take_turn(request)
        finally:
            await store.close()


class ClaimedConversations(Conversations, frozen=True, kw_only=True):
    """Conversations outside of runs. A worker claims a message before it answers it.

    Raises `DuplicateMessageError` while another worker has claimed the message, `ResumeTokenRefused`, and
    `VersionConflictError` if the conversation continued meanwhile; nothing was done then.
    """

    keys: ResumeKeys
    owner: str

    def open_turn(self, found: Capability, request: TurnRequest) -> "_ClaimedTurn":
        turn = super().open_turn(found, request)
        return _ClaimedTurn(
            conversations=self,
            found=found,
            request=request,
            store=replace(turn.store, keys=self.keys),
            keys=self.keys,
            owner=self.owner,
        )


class ConversationRouter(Struct, frozen=True):
    """Delegates to skills of the same executor: the child is a conversation in the same store, and no run.

    `runtime.skill_router` creates runs instead, with policy and approvals.
    """

    conversations: ClaimedConversations

    async def delegate(self, request: DelegationRequest) -> AgentResponse:
        # Context and message have fixed names, so a repeated call finds the child instead of starting another.
        return await replace(self.conversations, router=self).take_turn(
            TurnRequest(
                skill=request.skill,
                inputs=request.answers or request.inputs,
                context_id=request.context_id,
                resume=None,
                message_id=request.message_id,
                lineage=Lineage(request.chain, request.ceiling),
            )
        )


class _ClaimedTurn(ConversationTurn, frozen=True, kw_only=True):
    """One message outside of a run: claimed, answered once, continued by a token."""

    keys: ResumeKeys
    owner: str

    async def answer(self) -> AgentResponse:
        message_id, conversation = self.request.message_id, None
        if not message_id:
            conversation = await self._redeem(await self.store.load())
            if isinstance(conversation, AgentResponse):
                return conversation
            # Two messages without an ID for the same state get the same ID, so that only one of them gets the claim.
            message_id = f"turn:{conversation.state.version}"
        try:
            async with _claimed(self.store, message_id, owner=self.owner) as store:
                return await replace(self, store=store).take_claimed(is_redeemed=conversation is not None)
        except DuplicateMessageError as duplicate:
            if not duplicate.is_done:
                raise
            return await self.store.replay(duplicate.result)

    async def take_claimed(self, *, is_redeemed: bool) -> AgentResponse:
        conversation = await self.store.load()
        if not is_redeemed:
            # After the claim: a second delivery of the message is a duplicate, not the use of a redeemed token.
            conversation = await self._redeem(conversation)
            if isinstance(conversation, AgentResponse):
                return conversation
        return await self.take(conversation)

    async def repeat_interrupted(self, conversation: Conversation) -> NextTurn | AgentResponse:
        """Repeat the turn of a killed worker if its contract allows that. A live worker holds a claim."""
        state = conversation.state
        other = str(conversation.note("message") or "")
        if other and other != self.store.message_id:
            stored = await self.store.contexts.find_message(state.context_id, other)
            if stored is not None and stored.owner:
                raise VersionConflictError(
                    f"{stored.owner!r} works on conversation {state.context_id!r}",
                    hint="Wait for its answer, then retry",
                )
        if self.found.contract.effect == "opaque":
            message = f"Turn {state.current_turn} was started, and its outcome is unknown"
            response = build_failure("in_doubt", message, state=TaskState.ESCALATED)
            return await self.store.finish_turn(state, response, TurnEnd())
        return NextTurn(number=state.current_turn)

    async def _redeem(self, conversation: Conversation) -> Conversation | AgentResponse:
        """Redeem the request's token, if any, unless the message cannot continue the conversation.

        Raises `ResumeTokenRefused`.
        """
        request = self.request
        if not request.resume_token:
            return conversation
        redemption = check_token(
            request.resume_token,
            TokenSubject(context_id=request.context_id),
            keys=self.keys,
            now=self.conversations.clock.now(),
            message_id=request.message_id,
        )
        if redemption is None:
            raise ResumeTokenRefused
        refusal = self.find_refusal_of_resume(conversation)
        if refusal is not None:
            return refusal
        if await self.store.contexts.redeem(request.context_id, redemption) is None:
            raise ResumeTokenRefused
        redeemed = await self.store.load()
        is_repeated = redeemed.state.version > redemption.version + 1
        if is_repeated and redeemed.note("message") not in (None, request.message_id):
            # Another message took over the turn after the worker that redeemed the token was killed.
            raise ResumeTokenRefused
        return redeemed


@asynccontextmanager
async def _claimed(store: ConversationStore, message_id: str, *, owner: str) -> AsyncGenerator[ConversationStore]:
    """Claim a message, and release it if the block did not answer it. Losing the claim cancels the block.

    Raises `DuplicateMessageError` and `ClaimLost`.
    """
    contexts = store.contexts
    claim = await contexts.claim_message(store.context_id, message_id, owner=owner, seconds=CLAIM_SECONDS)
    try:
        async with keep_renewed(
            lambda: contexts.renew_claim(claim, seconds=CLAIM_SECONDS), every_seconds=RENEWAL_SECONDS
        ):
            yield replace(store, message_id=message_id, claim=claim)
    finally:
        # Shielded: a canceled worker must not block the message until its claim expires.
        with anyio.CancelScope(shield=True):
            await contexts.release_claim(claim)


def _name_owner() -> str:
    """A name per adapter: two adapters of one process are two workers."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
