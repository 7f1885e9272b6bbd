"""Turns of conversations with skills. A turn takes one message, calls the skill once and returns one response.

A turn is a step of a run (`tool.py`): the engine's journal, lease and replay decide who works on it and whether it is
repeated after a crash. Python programs call skills without a run; `adapter.py` adds claims and resume tokens for them.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.answers import as_json, build_blocked, build_failure
from metier.capabilities.contract import AUTONOMY_LEVELS
from metier.capabilities.conversation import (
    ADVICE,
    CAPABILITY,
    INPUTS,
    MEMORY,
    OUTPUTS,
    VALUES,
    Conversation,
    ConversationStore,
    TurnEnd,
    TurnStart,
)
from metier.capabilities.executor import Capability, SkillExecutor
from metier.capabilities.impl.process import Turn
from metier.capabilities.inputs import check_input_object, check_inputs
from metier.capabilities.protocol import (
    AgentResponse,
    Delegation,
    InputRequest,
    MessageType,
    ResponseMetadata,
    TaskState,
    task_state_to_execution_status_value,
)
from metier.capabilities.skill_delegation import (
    DelegationRequest,
    DelegationRouter,
    Lineage,
    compute_ceiling,
    find_excess,
    find_refusal,
    name_child,
)
from metier.definitions.names import canonical_name
from metier.ids import Clock, SystemClock
from metier.store.contexts import MAX_POCKET_FACTS_PER_BUCKET, ContextState, ContextStore, NewFact
from metier.telemetry.redaction import Redactor


class TurnRequest(Struct, frozen=True, kw_only=True):
    """A message to a skill."""

    skill: str
    inputs: dict[str, JsonValue]
    context_id: str
    resume: bool | None = False
    """None: continue if the conversation waits, otherwise start a new one."""
    resume_token: str = ""
    message_id: str = ""
    """A message is answered once; the same ID again returns the stored answer."""
    idempotency_key: str = ""
    timeout_seconds: float | None = None
    spool: Path | None = None
    lineage: Lineage = field(default_factory=Lineage)


class Conversations(Struct, frozen=True, kw_only=True):
    """Conversations with the skills of an executor, in a store."""

    executor: SkillExecutor
    contexts: ContextStore
    redactor: Redactor
    clock: Clock = field(default_factory=SystemClock)
    router: DelegationRouter | None = None

    async def take_turn(self, request: TurnRequest) -> AgentResponse:
        """Answer a message. Raises `VersionConflictError` if the conversation continued meanwhile."""
        check_input_object(request.inputs)
        found = self.executor.get_capability(request.skill)
        if isinstance(found, AgentResponse):
            return _stamp(found, request)
        excess = find_excess(found.contract, request.lineage)
        if excess is not None:
            return _stamp(excess, request)
        # A message with an ID must be answered once, so its answer is stored even for a stateless skill.
        if found.contract.state_persistence == "none" and not request.message_id:
            return _stamp(await self._take_only_turn(found, request), request, found)
        return _stamp(await self.open_turn(found, request).answer(), request, found)

    def open_turn(self, found: Capability, request: TurnRequest) -> "ConversationTurn":
        store = self._open_store(found, request)
        return ConversationTurn(conversations=self, found=found, request=request, store=store)

    async def find_answer(self, request: TurnRequest) -> AgentResponse | None:
        """Return the stored answer to a message."""
        found = self.executor.get_capability(request.skill)
        if isinstance(found, AgentResponse):
            return None
        answer = await self._open_store(found, request).find_answer(request.message_id)
        return _stamp(answer, request, found) if answer is not None else None

    async def _take_only_turn(self, found: Capability, request: TurnRequest) -> AgentResponse:
        """Call a skill that stores nothing, like a tool."""
        if request.resume:
            message = f"Skill {found.contract.skill!r} stores nothing, so there is no conversation to resume"
            return build_blocked("not_resumable", message)
        checked = check_inputs(request.inputs, found.contract)
        if checked.request is not None:
            return build_blocked("invalid_input", checked.request.render())
        turn = replace(
            self.executor.build_turn(found, request.inputs, context_id=request.context_id),
            idempotency_key=request.idempotency_key,
            timeout_seconds=request.timeout_seconds,
            spool=request.spool,
        )
        return (await self.executor.attempt(turn, self.executor.open_questions(found.contract))).response

    def _open_store(self, found: Capability, request: TurnRequest) -> ConversationStore:
        return ConversationStore(
            contexts=self.contexts,
            context_id=request.context_id,
            contract=found.contract,
            redactor=self.redactor,
            clock=self.clock,
            message_id=request.message_id,
        )


class NextTurn(Struct, frozen=True, kw_only=True):
    """The turn that a message starts, or repeats after a crash."""

    number: int
    is_new: bool = False
    """First turn of a new conversation."""


class ConversationTurn(Struct, frozen=True, kw_only=True):
    """One message of one conversation, as a step of a run. The run's lease excludes other workers."""

    conversations: Conversations
    found: Capability
    request: TurnRequest
    store: ConversationStore

    async def answer(self) -> AgentResponse:
        return await self.store.find_answer(self.request.message_id) or await self.take(await self.store.load())

    async def take(self, conversation: Conversation) -> AgentResponse:
        next_turn = await self._get_next_turn(conversation)
        if isinstance(next_turn, AgentResponse):
            return next_turn
        if conversation.state.task_state == "delegating" and not next_turn.is_new:
            return await self._continue_after_child(conversation, self.request.inputs)
        inputs = {**({} if next_turn.is_new else conversation.inputs), **self.request.inputs}
        asked = () if next_turn.is_new else conversation.asked
        secret = [] if next_turn.is_new else [name for name in conversation.redacted_inputs if name not in inputs]
        checked = check_inputs(inputs, self.found.contract, asked=asked, secret=secret)
        if checked.request is not None:
            return await self._ask_for_input(conversation, checked.request, turn=next_turn, inputs=checked.usable)
        # A turn that is repeated after a crash starts with the same result of the other skill as the first try.
        is_repeated = conversation.state.task_state == "in_progress" and not next_turn.is_new
        delegated = conversation.note("delegated") if is_repeated else None
        return await self._call_skill(conversation, next_turn, inputs=inputs, delegated=delegated)

    async def repeat_interrupted(self, conversation: Conversation) -> NextTurn | AgentResponse:
        """Return the turn that a killed worker left. The engine has decided that the step may run again."""
        return NextTurn(number=conversation.state.current_turn)

    def find_refusal_of_resume(self, conversation: Conversation) -> AgentResponse | None:
        """Return why this message cannot continue a conversation that waits or was interrupted."""
        state, contract = conversation.state, self.found.contract
        skill = conversation.note("skill")
        if not state.is_resumable and state.task_state != "in_progress":
            return None
        if skill is not None and skill != contract.skill:
            return build_blocked("other_skill", f"Conversation {state.context_id!r} belongs to skill {skill!r}")
        if state.is_resumable and not contract.interaction.supports_resume:
            return build_blocked("not_resumable", f"Skill {contract.skill!r} does not support a resume")
        return None

    async def _get_next_turn(self, conversation: Conversation) -> NextTurn | AgentResponse:
        """Return the turn that this message starts, or a response if it may not start one."""
        state, resume = conversation.state, self.request.resume
        refusal = self.find_refusal_of_resume(conversation)
        if state.task_state == "in_progress":
            return refusal or await self.repeat_interrupted(conversation)
        if not state.is_resumable:
            if resume:
                message = f"Conversation {state.context_id!r} is not waiting for input"
                return build_blocked("not_waiting", message)
            return NextTurn(number=1, is_new=True)
        if refusal is not None:
            return refusal
        if resume is False and not self._has_delegated(conversation):
            message = f"Conversation {state.context_id!r} is waiting for input; resume it, or use another context_id"
            return build_blocked("already_waiting", message)
        return NextTurn(number=state.current_turn + 1)

    async def _ask_for_input(
        self, conversation: Conversation, wanted: InputRequest, *, turn: NextTurn, inputs: dict[str, JsonValue]
    ) -> AgentResponse:
        """Ask for missing and invalid inputs. The skill is not called, so this uses up no turn."""
        if not self.found.contract.allows(TaskState.INPUT_REQUIRED):
            return build_blocked("invalid_input", wanted.render())
        detail = "invalid_input" if wanted.errors else "missing_input"
        response = _with_detail(AgentResponse(state=TaskState.INPUT_REQUIRED, input_request=wanted), detail)
        facts = (
            NewFact(bucket=CAPABILITY, key="skill", value=self.found.contract.skill),
            NewFact(bucket=CAPABILITY, key="chain", value=list(self.request.lineage.chain)),
            NewFact(bucket=CAPABILITY, key="ceiling", value=self.request.lineage.ceiling),
            NewFact(bucket=INPUTS, key=VALUES, value=inputs),
        )
        end = TurnEnd(
            # A later question only changes the inputs: skill, chain and ceiling stay those of the first turn.
            facts=facts if turn.is_new else facts[-1:],
            # A new conversation in the same context must not see what the previous one stored.
            forgotten=conversation.own_facts if turn.is_new else (),
            kind=MessageType.INPUT_REQUEST,
            payload=wanted.model_dump(mode="json"),
        )
        # The question uses up no turn: the message with the answer starts the turn of this number.
        state = dataclasses.replace(conversation.state, current_turn=turn.number - 1)
        return await self.store.finish_turn(state, response, end)

    async def _call_skill(
        self, conversation: Conversation, turn: NextTurn, *, inputs: dict[str, JsonValue], delegated: JsonValue = None
    ) -> AgentResponse:
        contract = self.found.contract
        if turn.number > contract.interaction.max_turns:
            message = f"The conversation reached the limit of its contract: {contract.interaction.max_turns} turns"
            response = build_failure("max_turns", message, state=TaskState.ESCALATED)
            return await self.store.finish_turn(conversation.state, response, TurnEnd())
        start = TurnStart(
            number=turn.number,
            inputs=inputs,
            lineage=self._get_lineage(conversation, turn),
            kind=MessageType.REQUEST if turn.is_new else MessageType.INPUT_RESPONSE,
            payload=self.request.inputs,
            is_new=turn.is_new,
            delegated=delegated,
        )
        state = await self.store.start_turn(conversation, start)
        call = self._build_call(conversation, turn, inputs=inputs, delegated=delegated)
        known = {} if turn.is_new else conversation.advice
        questions = self.conversations.executor.open_questions(contract, known=known, save=self.store.save_advice)
        attempt = await self.conversations.executor.attempt(call, questions)
        facts = _build_facts(attempt.remembered, call.facts)
        response = attempt.response if facts is not None else _build_too_many_facts()
        if response.state == TaskState.DELEGATING:
            return await self._delegate(state, response, facts=facts or ())
        kind, payload = _build_event(response)
        end = TurnEnd(
            facts=(*(facts or ()), *_build_outputs(response)),
            # Advice is stored only for a repetition of the turn, which must not pay for the same question twice.
            forgotten=tuple((ADVICE, key) for key in await self._list_advice()),
            kind=kind,
            payload=payload,
        )
        return await self.store.finish_turn(state, response, end)

    def _build_call(
        self, conversation: Conversation, turn: NextTurn, *, inputs: dict[str, JsonValue], delegated: JsonValue
    ) -> Turn:
        call = self.conversations.executor.build_turn(
            self.found, inputs, context_id=self.request.context_id, number=turn.number
        )
        key = self.request.idempotency_key or self.request.context_id
        return replace(
            call,
            facts={} if turn.is_new else conversation.remembered,
            delegated=delegated,
            # With the turn: a service must not take the second call of a conversation for a repetition of the first.
            idempotency_key=f"{key}-{turn.number}",
            timeout_seconds=self.request.timeout_seconds,
            spool=self.request.spool,
        )

    async def _delegate(
        self, state: ContextState, response: AgentResponse, *, facts: tuple[NewFact, ...]
    ) -> AgentResponse:
        assert response.delegation is not None, "checked when the answer was parsed"
        contract, delegation = self.found.contract, response.delegation
        conversation = await self.store.load()
        lineage = self._get_lineage(conversation, NextTurn(number=state.current_turn))
        refusal = find_refusal(delegation, contract, lineage)
        if self.conversations.router is None:
            message = f"Skill {contract.skill!r} delegates, but there is no router; pass router= or routes=True"
            refusal = build_blocked("no_router", message)
        if refusal is not None:
            kind, payload = _build_event(refusal)
            return await self.store.finish_turn(state, refusal, TurnEnd(facts=facts, kind=kind, payload=payload))
        child: dict[str, JsonValue] = {
            "skill": canonical_name(delegation.skill),
            "context_id": name_child(state.context_id, version=state.version, skill=delegation.skill),
            "inputs": delegation.inputs,
            "message": self.store.message_id,
        }
        end = TurnEnd(
            facts=(*facts, NewFact(bucket=CAPABILITY, key="child", value=child)),
            kind=MessageType.DELEGATE,
            payload=delegation.model_dump(mode="json"),
            answers=False,
        )
        # The child's name is recorded before the child starts: after a crash the child is found, not started again.
        await self.store.finish_turn(state, response, end)
        return await self._continue_after_child(await self.store.load(), {})

    async def _continue_after_child(
        self, conversation: Conversation, answers: Mapping[str, JsonValue]
    ) -> AgentResponse:
        """Start or find the child. If it has ended, call the skill with its result; else wait for it."""
        router = self.conversations.router
        child = conversation.note("child")
        if router is None or not isinstance(child, dict):
            return build_blocked("no_router", "The conversation waits for another skill, but there is no router")
        turn = NextTurn(number=conversation.state.current_turn + 1)
        lineage = self._get_lineage(conversation, turn)
        inputs = child.get("inputs")
        ended = await router.delegate(
            DelegationRequest(
                skill=str(child["skill"]),
                inputs=inputs if isinstance(inputs, dict) else {},
                context_id=str(child["context_id"]),
                parent_context_id=conversation.state.context_id,
                # The same again when the turn is repeated after a crash, so the child recognizes the message.
                message_id=f"from:{conversation.state.version}",
                chain=(*lineage.chain, self.found.contract.skill),
                ceiling=compute_ceiling(lineage, self.found.contract),
                answers={} if self._has_delegated(conversation) else dict(answers),
            )
        )
        if not ended.state.is_terminal:
            waiting = AgentResponse(
                state=TaskState.DELEGATING,
                input_request=ended.input_request,
                delegation=Delegation(skill=str(child["skill"])),
                metadata=ResponseMetadata(handed_on=ended.metadata.handed_on, agent_state_detail="child_waits"),
            )
            return await self.store.finish_turn(conversation.state, waiting, TurnEnd())
        delegated: JsonValue = {
            "skill": str(child["skill"]),
            "state": ended.state.value,
            "outputs": ended.outputs,
            "errors": [cast("JsonValue", error.model_dump(mode="json")) for error in ended.errors],
        }
        return await self._call_skill(conversation, turn, inputs=conversation.inputs, delegated=delegated)

    def _has_delegated(self, conversation: Conversation) -> bool:
        """Return True if this message made the skill delegate: delivered again, it answers no question."""
        child = conversation.note("child")
        is_delegating = conversation.state.task_state == "delegating"
        return is_delegating and isinstance(child, dict) and child.get("message") == self.store.message_id

    def _get_lineage(self, conversation: Conversation, turn: NextTurn) -> Lineage:
        """Return the lineage of the conversation's first turn."""
        # A caller that resumes a conversation must not give it more authority than it started with.
        if turn.is_new:
            return self.request.lineage
        chain, ceiling = conversation.note("chain"), conversation.note("ceiling")
        names = tuple(str(name) for name in chain) if isinstance(chain, list) else ()
        for level in AUTONOMY_LEVELS:
            if level == ceiling:
                return Lineage(names, level)
        return Lineage(names, self.request.lineage.ceiling)

    async def _list_advice(self) -> list[str]:
        return [fact.key for fact in await self.store.contexts.list_facts(self.store.context_id, bucket=ADVICE)]


def _stamp(response: AgentResponse, request: TurnRequest, found: Capability | None = None) -> AgentResponse:
    facts = {
        "context_id": request.context_id,
        "skill": canonical_name(request.skill),
        "max_turns": found.contract.interaction.max_turns if found else 1,
        "execution_status": task_state_to_execution_status_value(response.state),
    }
    return response.model_copy(update={"metadata": response.metadata.model_copy(update=facts)})


def _with_detail(response: AgentResponse, detail: str) -> AgentResponse:
    metadata = response.metadata.model_copy(update={"agent_state_detail": detail})
    return response.model_copy(update={"metadata": metadata})


def _build_too_many_facts() -> AgentResponse:
    message = f"The skill remembers more than {MAX_POCKET_FACTS_PER_BUCKET} facts"
    return build_failure("too_many_facts", message)


def _build_facts(new: dict[str, JsonValue], old: dict[str, JsonValue]) -> tuple[NewFact, ...] | None:
    if len({*new, *old}) > MAX_POCKET_FACTS_PER_BUCKET:
        return None
    return tuple(NewFact(bucket=MEMORY, key=key, value=value) for key, value in new.items())


def _build_outputs(response: AgentResponse) -> tuple[NewFact, ...]:
    if response.state != TaskState.COMPLETED:
        return ()
    return (NewFact(bucket=OUTPUTS, key=VALUES, value=response.outputs),)


def _build_event(response: AgentResponse) -> tuple[MessageType, JsonValue]:
    if response.state == TaskState.INPUT_REQUIRED and response.input_request is not None:
        return MessageType.INPUT_REQUEST, response.input_request.model_dump(mode="json")
    return MessageType.ERROR if response.errors else MessageType.RESPONSE, as_json(response)
