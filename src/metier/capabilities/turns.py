"""Conversations with skills: one turn in, one response out, everything that the next turn needs in the store.

A skill does its work only while its turn is on record, and its answer counts when it is written together with the
result of the message that brought it. So a turn that is repeated, after a crash, by another worker or because a message
came twice, gives the same answer.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.answers import as_json, build_failure
from metier.capabilities.contract import AUTONOMY_LEVELS
from metier.capabilities.delegation import (
    DelegationRequest,
    DelegationRouter,
    Lineage,
    find_excess,
    find_refusal,
    lower,
    name_child,
)
from metier.capabilities.executor import Capability, SkillExecutor
from metier.capabilities.impl.process import Turn
from metier.capabilities.inputs import check_input_object, check_inputs
from metier.capabilities.memory import (
    ADVICE,
    CAPABILITY,
    INPUTS,
    MEMORY,
    OUTPUTS,
    VALUES,
    Beginning,
    Ending,
    Memory,
    Note,
    Recalled,
)
from metier.capabilities.protocol import (
    AgentResponse,
    Delegation,
    InputRequest,
    MessageType,
    ResponseMetadata,
    TaskState,
    task_state_to_execution_status_value,
)
from metier.definitions.names import canonical_name
from metier.ids import Clock, SystemClock
from metier.store.contexts import MAX_POCKET_FACTS_PER_BUCKET, Claim, ContextState, ContextStore, NewFact
from metier.store.failures import DuplicateMessageError, ResumeTokenRefused, VersionConflictError
from metier.store.tokens import ResumeKeys, Wanted, check_token
from metier.telemetry.redaction import Redactor


class TurnRequest(Struct, frozen=True, kw_only=True):
    skill: str
    inputs: dict[str, JsonValue]
    context_id: str
    resume: bool | None = False
    """None: continue if the conversation waits, begin if it does not."""
    resume_token: str = ""
    message_id: str = ""
    """The same message twice is answered once."""
    idempotency_key: str = ""
    timeout_seconds: float | None = None
    spool: Path | None = None
    may_repeat: bool = False
    """The caller has found out that a turn that was cut short may run again, whatever its effects."""
    lineage: Lineage = field(default_factory=Lineage)


class Conversations(Struct, frozen=True, kw_only=True):
    """Takes turns with the skills of an executor, on a store."""

    executor: SkillExecutor
    contexts: ContextStore
    redactor: Redactor
    keys: ResumeKeys
    owner: str
    clock: Clock = field(default_factory=SystemClock)
    router: DelegationRouter | None = None

    async def take_turn(self, request: TurnRequest) -> AgentResponse:
        """Raises `DuplicateMessageError` while another worker has claimed the message, `ResumeTokenRefused`, and
        `VersionConflictError` when the conversation continued meanwhile; nothing was done then.
        """
        check_input_object(request.inputs)
        found = self.executor.find(request.skill)
        if isinstance(found, AgentResponse):
            return _stamp(found, request)
        excess = find_excess(found.contract, request.lineage)
        if excess is not None:
            return _stamp(excess, request)
        if found.contract.state_persistence == "none" and not request.message_id:
            return _stamp(await self._take_only_turn(found, request), request, found)
        memory = self._open_memory(found, request)
        talk = _Talk(conversations=self, found=found, request=request, memory=memory)
        message_id = request.message_id or await talk.admit_without_id()
        if isinstance(message_id, AgentResponse):
            return _stamp(message_id, request, found)
        try:
            response = await memory.hold(message_id, talk.run)
        except DuplicateMessageError as duplicate:
            if not duplicate.is_done:
                raise
            response = await _replay(memory, duplicate.result)
        return _stamp(response, request, found)

    async def find_answer(self, request: TurnRequest) -> AgentResponse | None:
        """What came of a message, without doing anything."""
        found = self.executor.find(request.skill)
        if isinstance(found, AgentResponse):
            return None
        stored = await self.contexts.find_message(request.context_id, request.message_id)
        if stored is None or not stored.is_done:
            return None
        return _stamp(await _replay(self._open_memory(found, request), stored.result), request, found)

    async def _take_only_turn(self, found: Capability, request: TurnRequest) -> AgentResponse:
        """A skill that keeps nothing: a tool, called once."""
        if request.resume:
            return _blocked("not_resumable", f"Skill {found.contract.skill!r} keeps nothing that could be resumed")
        checked = check_inputs(request.inputs, found.contract)
        if checked.request is not None:
            return _blocked("invalid_input", checked.request.render())
        turn = replace(
            self.executor.build_turn(found, request.inputs, context_id=request.context_id),
            idempotency_key=request.idempotency_key,
            timeout_seconds=request.timeout_seconds,
            spool=request.spool,
        )
        return (await self.executor.attempt(turn, self.executor.open_desk(found.contract))).response

    def _open_memory(self, found: Capability, request: TurnRequest) -> Memory:
        return Memory(
            contexts=self.contexts,
            context_id=request.context_id,
            contract=found.contract,
            redactor=self.redactor,
            keys=self.keys,
            clock=self.clock,
            owner=self.owner,
        )


class _Entry(Struct, frozen=True, kw_only=True):
    """Where a turn begins: a new conversation, the next turn of one, or the same turn again after a crash."""

    turn: int
    is_new: bool = False


class _Talk(Struct, frozen=True, kw_only=True):
    """One message of one conversation, from its claim to its answer."""

    conversations: Conversations
    found: Capability
    request: TurnRequest
    memory: Memory

    async def admit_without_id(self) -> str | AgentResponse:
        """Redeem the token of a message without an id, and name the message after the state that it continues."""
        recalled = await self.memory.recall()
        if self.request.resume_token:
            redeemed = await self._redeem(recalled)
            if isinstance(redeemed, AgentResponse):
                return redeemed
            recalled = redeemed
        return f"turn:{recalled.state.version}"

    async def run(self, claim: Claim) -> AgentResponse:
        recalled = await self.memory.recall()
        if self.request.message_id and self.request.resume_token:
            # Behind the claim: the same message twice at once is a duplicate, not a token that was used up.
            redeemed = await self._redeem(recalled)
            if isinstance(redeemed, AgentResponse):
                return redeemed
            recalled = redeemed
        entry = await self._enter(recalled, claim)
        if isinstance(entry, AgentResponse):
            return entry
        if recalled.state.task_state == "delegating" and not entry.is_new:
            return await self._go_on_with_child(recalled, claim, self.request.inputs)
        inputs = {**({} if entry.is_new else recalled.inputs), **self.request.inputs}
        asked = () if entry.is_new else recalled.asked
        secret = [] if entry.is_new else [name for name in recalled.redacted_inputs if name not in inputs]
        checked = check_inputs(inputs, self.found.contract, asked=asked, secret=secret)
        if checked.request is not None:
            return await self._ask_again(recalled, checked.request, entry=entry, inputs=checked.usable, claim=claim)
        # A turn that is repeated after a crash begins with what the first try was given.
        is_repeated = recalled.state.task_state == "in_progress" and not entry.is_new
        delegated = recalled.note("delegated") if is_repeated else None
        return await self._work(recalled, entry, inputs=inputs, claim=claim, delegated=delegated)

    async def _redeem(self, recalled: Recalled) -> Recalled | AgentResponse:
        """Redeem the request's token, unless the call cannot continue the conversation. Raises `ResumeTokenRefused`."""
        request = self.request
        redemption = check_token(
            request.resume_token,
            Wanted(context_id=request.context_id),
            keys=self.conversations.keys,
            now=self.conversations.clock.now(),
            message_id=request.message_id,
        )
        if redemption is None:
            raise ResumeTokenRefused
        refusal = self._find_refusal_of_resume(recalled)
        if refusal is not None:
            return refusal
        if await self.memory.contexts.redeem(request.context_id, redemption) is None:
            raise ResumeTokenRefused
        redeemed = await self.memory.recall()
        is_repeated = redeemed.state.version > redemption.version + 1
        if is_repeated and redeemed.note("message") not in (None, request.message_id):
            # Another message took over the turn after the worker that redeemed the token was killed.
            raise ResumeTokenRefused
        return redeemed

    def _find_refusal_of_resume(self, recalled: Recalled) -> AgentResponse | None:
        """Why this call cannot continue a conversation that waits or was cut short."""
        state, contract = recalled.state, self.found.contract
        skill = recalled.note("skill")
        if not state.is_resumable and state.task_state != "in_progress":
            return None
        if skill is not None and skill != contract.skill:
            return _blocked("other_skill", f"Conversation {state.context_id!r} is one with skill {skill!r}")
        if state.is_resumable and not contract.interaction.supports_resume:
            return _blocked("not_resumable", f"Skill {contract.skill!r} does not support a resume")
        return None

    async def _enter(self, recalled: Recalled, claim: Claim) -> _Entry | AgentResponse:
        """What this message is to the conversation; a response where it may not continue."""
        state, resume = recalled.state, self.request.resume
        refusal = self._find_refusal_of_resume(recalled)
        if state.task_state == "in_progress":
            return refusal or await self._enter_after_crash(recalled, claim)
        if not state.is_resumable:
            if resume:
                return _blocked("not_waiting", f"Conversation {state.context_id!r} does not wait for anything")
            return _Entry(turn=1, is_new=True)
        if refusal is not None:
            return refusal
        if resume is False and not _is_handed_on_by(claim, recalled):
            message = f"Conversation {state.context_id!r} waits for input; resume it, or use another context_id"
            return _blocked("already_waiting", message)
        return _Entry(turn=state.current_turn + 1)

    async def _enter_after_crash(self, recalled: Recalled, claim: Claim) -> _Entry | AgentResponse:
        """Enter a turn that was cut short. Its worker is gone: a live claim would have been a conflict."""
        state, contract = recalled.state, self.found.contract
        other = str(recalled.note("message") or "")
        if other and other != claim.message_id:
            stored = await self.memory.contexts.find_message(state.context_id, other)
            if stored is not None and stored.owner:
                raise VersionConflictError(
                    f"{stored.owner!r} works on conversation {state.context_id!r}",
                    hint="Wait for its answer, then retry",
                )
        if contract.effect == "opaque" and not self.request.may_repeat:
            message = f"Turn {state.current_turn} was started, and its outcome is unknown"
            response = build_failure("in_doubt", message, state=TaskState.ESCALATED)
            return await self.memory.keep(state, response, Ending(claim=claim))
        return _Entry(turn=state.current_turn)

    async def _ask_again(
        self, recalled: Recalled, wanted: InputRequest, *, entry: _Entry, inputs: dict[str, JsonValue], claim: Claim
    ) -> AgentResponse:
        """The skill is not called, so no turn is used up."""
        if not self.found.contract.allows(TaskState.INPUT_REQUIRED):
            return _blocked("invalid_input", wanted.render())
        detail = "invalid_input" if wanted.errors else "missing_input"
        response = AgentResponse(state=TaskState.INPUT_REQUIRED, input_request=wanted)
        response = _with_detail(response, detail)
        facts = (
            NewFact(bucket=CAPABILITY, key="skill", value=self.found.contract.skill),
            NewFact(bucket=CAPABILITY, key="chain", value=list(self.request.lineage.chain)),
            NewFact(bucket=CAPABILITY, key="ceiling", value=self.request.lineage.ceiling),
            NewFact(bucket=INPUTS, key=VALUES, value=inputs),
        )
        ending = Ending(
            facts=facts if entry.is_new else facts[-1:],
            forgotten=recalled.forgettable if entry.is_new else (),
            notes=(Note(kind=MessageType.INPUT_REQUEST, payload=wanted.model_dump(mode="json")),),
            claim=claim,
        )
        state = dataclasses.replace(recalled.state, current_turn=entry.turn - 1)
        return await self.memory.keep(state, response, ending)

    async def _work(
        self,
        recalled: Recalled,
        entry: _Entry,
        *,
        inputs: dict[str, JsonValue],
        claim: Claim,
        delegated: JsonValue = None,
    ) -> AgentResponse:
        """Call the skill, and keep what it answers."""
        contract = self.found.contract
        if entry.turn > contract.interaction.max_turns:
            message = (
                f"The conversation took {contract.interaction.max_turns} turns, which is the limit of its contract"
            )
            response = build_failure("max_turns", message, state=TaskState.ESCALATED)
            return await self.memory.keep(recalled.state, response, Ending(claim=claim))
        kind = MessageType.REQUEST if entry.is_new else MessageType.INPUT_RESPONSE
        beginning = Beginning(
            turn=entry.turn,
            inputs=inputs,
            lineage=self._lineage(recalled, entry),
            is_new=entry.is_new,
            delegated=delegated,
            notes=(Note(kind=kind, payload=self.request.inputs),),
        )
        state = await self.memory.begin(recalled, beginning, claim)
        turn = self._build_turn(recalled, entry, inputs=inputs, delegated=delegated)
        known = {} if entry.is_new else recalled.advice
        desk = self.conversations.executor.open_desk(contract, known=known, keep=self.memory.keep_advice)
        attempt = await self.conversations.executor.attempt(turn, desk)
        facts = _remember(attempt.remembered, turn.facts)
        response = attempt.response if facts is not None else _too_much()
        if response.state == TaskState.DELEGATING:
            return await self._delegate(state, response, facts=facts or (), claim=claim)
        ending = Ending(
            facts=(*(facts or ()), *_outputs(response)),
            forgotten=tuple((ADVICE, key) for key in await self._advice_keys()),
            notes=(_describe(response),),
            claim=claim,
        )
        return await self.memory.keep(state, response, ending)

    def _build_turn(
        self, recalled: Recalled, entry: _Entry, *, inputs: dict[str, JsonValue], delegated: JsonValue
    ) -> Turn:
        turn = self.conversations.executor.build_turn(
            self.found, inputs, context_id=self.request.context_id, number=entry.turn
        )
        return replace(
            turn,
            facts={} if entry.is_new else recalled.memory,
            delegated=delegated,
            idempotency_key=self._build_key(entry.turn),
            timeout_seconds=self.request.timeout_seconds,
            spool=self.request.spool,
        )

    async def _delegate(
        self, state: ContextState, response: AgentResponse, *, facts: tuple[NewFact, ...], claim: Claim
    ) -> AgentResponse:
        """Record which child is waited for before it starts."""
        assert response.delegation is not None, "checked when the answer was parsed"
        contract, delegation = self.found.contract, response.delegation
        recalled = await self.memory.recall()
        refusal = find_refusal(delegation, contract, self._lineage(recalled, _Entry(turn=state.current_turn)))
        if self.conversations.router is None:
            refusal = _blocked("no_router", f"Skill {contract.skill!r} delegates, and nothing here routes that")
        if refusal is not None:
            return await self.memory.keep(state, refusal, Ending(facts=facts, notes=(_describe(refusal),), claim=claim))
        child: dict[str, JsonValue] = {
            "skill": canonical_name(delegation.skill),
            "context_id": name_child(state.context_id, version=state.version, skill=delegation.skill),
            "inputs": delegation.inputs,
            "message": claim.message_id,
        }
        ending = Ending(
            facts=(*facts, NewFact(bucket=CAPABILITY, key="child", value=child)),
            notes=(Note(kind=MessageType.DELEGATE, payload=delegation.model_dump(mode="json")),),
        )
        await self.memory.keep(state, response, ending)
        return await self._go_on_with_child(await self.memory.recall(), claim, {})

    async def _go_on_with_child(
        self, recalled: Recalled, claim: Claim, answers: Mapping[str, JsonValue]
    ) -> AgentResponse:
        """Ask how the child stands; when it has ended, the skill continues with what it gave."""
        router = self.conversations.router
        child = recalled.note("child")
        if router is None or not isinstance(child, dict):
            return _blocked("no_router", "The conversation waits for another skill, and nothing here routes that")
        entry = _Entry(turn=recalled.state.current_turn + 1)
        lineage = self._lineage(recalled, entry)
        given = child.get("inputs")
        ended = await router.delegate(
            DelegationRequest(
                skill=str(child["skill"]),
                inputs=given if isinstance(given, dict) else {},
                context_id=str(child["context_id"]),
                parent_context_id=recalled.state.context_id,
                message_id=f"from:{recalled.state.version}",
                chain=(*lineage.chain, self.found.contract.skill),
                ceiling=lower(lineage, self.found.contract),
                answers={} if _is_handed_on_by(claim, recalled) else dict(answers),
            )
        )
        if not ended.state.is_terminal:
            waiting = AgentResponse(
                state=TaskState.DELEGATING,
                input_request=ended.input_request,
                delegation=Delegation(skill=str(child["skill"])),
                metadata=ResponseMetadata(handed_on=ended.metadata.handed_on),
            )
            return await self.memory.keep(recalled.state, _with_detail(waiting, "child_waits"), Ending(claim=claim))
        delegated: JsonValue = {
            "skill": str(child["skill"]),
            "state": ended.state.value,
            "outputs": ended.outputs,
            "errors": [cast("JsonValue", error.model_dump(mode="json")) for error in ended.errors],
        }
        return await self._work(recalled, entry, inputs=recalled.inputs, claim=claim, delegated=delegated)

    def _lineage(self, recalled: Recalled, entry: _Entry) -> Lineage:
        """That of the first turn: a caller that resumes a child cannot give it more."""
        if entry.is_new:
            return self.request.lineage
        chain, ceiling = recalled.note("chain"), recalled.note("ceiling")
        names = tuple(str(name) for name in chain) if isinstance(chain, list) else ()
        for level in AUTONOMY_LEVELS:
            if level == ceiling:
                return Lineage(names, level)
        return Lineage(names, self.request.lineage.ceiling)

    def _build_key(self, turn: int) -> str:
        key = self.request.idempotency_key
        return f"{key}-{turn}" if key else f"{self.request.context_id}-{turn}"

    async def _advice_keys(self) -> list[str]:
        return [fact.key for fact in await self.memory.contexts.list_facts(self.memory.context_id, bucket=ADVICE)]


def _is_handed_on_by(claim: Claim, recalled: Recalled) -> bool:
    """It is the message that made the skill delegate, come again: it answers nothing, and need not say resume."""
    child = recalled.note("child")
    is_delegating = recalled.state.task_state == "delegating"
    return is_delegating and isinstance(child, dict) and child.get("message") == claim.message_id


async def _replay(memory: Memory, result: JsonValue) -> AgentResponse:
    """The stored answer, with a token for the state as it is now."""
    response = AgentResponse.model_validate(result)
    response = response.model_copy(update={"metadata": response.metadata.model_copy(update={"replayed": True})})
    state = await memory.contexts.find_state(memory.context_id)
    is_current = state is not None and state.version == response.metadata.version
    return memory.with_token(response, state) if state is not None and is_current else response


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


def _blocked(code: str, message: str) -> AgentResponse:
    return build_failure(code, message, state=TaskState.BLOCKED)


def _too_much() -> AgentResponse:
    message = f"The skill remembers more than {MAX_POCKET_FACTS_PER_BUCKET} facts"
    return build_failure("too_many_facts", message)


def _remember(new: dict[str, JsonValue], old: dict[str, JsonValue]) -> tuple[NewFact, ...] | None:
    if len({*new, *old}) > MAX_POCKET_FACTS_PER_BUCKET:
        return None
    return tuple(NewFact(bucket=MEMORY, key=key, value=value) for key, value in new.items())


def _outputs(response: AgentResponse) -> tuple[NewFact, ...]:
    if response.state != TaskState.COMPLETED:
        return ()
    return (NewFact(bucket=OUTPUTS, key=VALUES, value=response.outputs),)


def _describe(response: AgentResponse) -> Note:
    if response.state == TaskState.INPUT_REQUIRED and response.input_request is not None:
        return Note(kind=MessageType.INPUT_REQUEST, payload=response.input_request.model_dump(mode="json"))
    kind = MessageType.ERROR if response.errors else MessageType.RESPONSE
    return Note(kind=kind, payload=as_json(response))
