"""Skills as agents for Python programs: `adapter.invoke`. Plain calls; what waits, waits inside.

adapter = metier.create_agent_adapter(metier.create_executor("."))
response = adapter.invoke("schema-infer", {}, "my-context")
if response.state == TaskState.INPUT_REQUIRED:
    response = adapter.invoke("schema-infer", {"data": …}, "my-context", resume=True)
"""

import os
import secrets
import socket

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.delegation import DelegationRequest, DelegationRouter, Lineage
from metier.capabilities.executor import SkillExecutor, run_blocking
from metier.capabilities.protocol import AgentResponse
from metier.capabilities.turns import Conversations, TurnRequest
from metier.store.backend import open_store
from metier.store.state import StateOptions
from metier.store.tokens import load_resume_keys


class ConversationRouter(Struct, frozen=True):
    """Delegates to skills of the same executor: the child is a conversation in the same store, and no run.

    No journal, no rules and no approvals: for programs that only want skills called.
    `runtime.skill_router` has runs.
    """

    conversations: Conversations

    async def delegate(self, request: DelegationRequest) -> AgentResponse:
        """Started once and found again: the child's context and message have fixed names."""
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


class AgentAdapter(Struct, frozen=True, kw_only=True):
    """Skills as agents: turns with states, on top of an executor. Made by `metier.create_agent_adapter`."""

    executor: SkillExecutor
    options: StateOptions
    routes: bool = False
    """Skills may delegate to each other."""
    router: DelegationRouter | None = None
    """Instead of the own one."""

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
        """One turn. Raises `DuplicateMessageError`, `ResumeTokenRefused`, `VersionConflictError`, `SkillNotFound`."""
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
        store = await open_store(options.store, runs=options.runs, environ=options.environ, clock=options.clock)
        try:
            conversations = Conversations(
                executor=self.executor,
                contexts=store.contexts,
                redactor=options.redactor,
                keys=load_resume_keys(options.runs, options.environ),
                owner=name_owner(),
                clock=options.clock,
                router=self.router,
            )
            if self.routes and self.router is None:
                conversations = with_own_router(conversations)
            return await conversations.take_turn(request)
        finally:
            await store.close()


def with_own_router(conversations: Conversations) -> Conversations:
    """The same conversations, whose skills may delegate to each other, at any depth that the rules allow."""
    return replace(conversations, router=ConversationRouter(conversations))


def name_owner() -> str:
    """Another one for each adapter: two of one process are two workers."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
