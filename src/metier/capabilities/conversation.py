"""A conversation with a skill, as stored between turns. Each turn has two transactions: at its start and at its end."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import cast

from msgspec import Struct, field
from pydantic import JsonValue, ValidationError

from metier.capabilities.answers import as_json
from metier.capabilities.contract import SkillContract
from metier.capabilities.protocol import AgentResponse, InputRequest, MessageType, MissingField
from metier.capabilities.skill_delegation import Lineage
from metier.ids import Clock
from metier.store.contexts import (
    Claim,
    Completion,
    ContextChange,
    ContextState,
    ContextStore,
    NewEvent,
    NewFact,
)
from metier.store.resume_tokens import LIFETIME_SECONDS, ResumeKeys, TokenSubject, sign_token
from metier.store.state_store import is_redacted, redact_change
from metier.telemetry.redaction import Redactor

INPUTS, MEMORY, OUTPUTS, ADVICE, CAPABILITY = "inputs", "memory", "outputs", "advice", "capability"
"""Buckets of facts. `OUTPUTS` outlives the conversation; the others are deleted with it."""
VALUES = "values"


class Conversation(Struct, frozen=True, kw_only=True):
    """A conversation after its last turn."""

    state: ContextState
    facts: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict[str, Mapping[str, JsonValue]])
    """Facts by bucket and key."""

    @property
    def inputs(self) -> dict[str, JsonValue]:
        # Without redacted ones: a skill must not take the placeholder for the value.
        return {name: value for name, value in self._stored_inputs.items() if not is_redacted(value)}

    @property
    def redacted_inputs(self) -> tuple[str, ...]:
        """Names of inputs whose values are secrets and so were not stored."""
        return tuple(name for name, value in self._stored_inputs.items() if is_redacted(value))

    @property
    def _stored_inputs(self) -> dict[str, JsonValue]:
        values = self.facts.get(INPUTS, {}).get(VALUES)
        return dict(values) if isinstance(values, dict) else {}

    @property
    def asked(self) -> tuple[MissingField, ...]:
        """Fields that the conversation waits for."""
        request = self.state.input_request if self.state.task_state == "input_required" else None
        try:
            return InputRequest.model_validate(request).missing_fields
        except ValidationError:
            # None, or written by a program with `put_state`.
            return ()

    @property
    def remembered(self) -> dict[str, JsonValue]:
        """Facts that the skill stored with `context.remember`."""
        return dict(self.facts.get(MEMORY, {}))

    @property
    def advice(self) -> dict[str, JsonValue]:
        return dict(self.facts.get(ADVICE, {}))

    def note(self, key: str) -> JsonValue:
        """Return a fact about the conversation itself, such as `skill`, `message` or `child`."""
        return self.facts.get(CAPABILITY, {}).get(key)

    @property
    def own_facts(self) -> tuple[tuple[str, str], ...]:
        """Bucket and key of each fact that a new conversation in the same context must not start with."""
        return tuple(
            (bucket, key) for bucket in (INPUTS, MEMORY, ADVICE, CAPABILITY) for key in self.facts.get(bucket, {})
        )


class TurnStart(Struct, frozen=True, kw_only=True):
    """The record of a turn before its skill is called."""

    number: int
    inputs: Mapping[str, JsonValue]
    lineage: Lineage
    kind: MessageType
    payload: JsonValue
    is_new: bool = False
    delegated: JsonValue = None
    """Result of another skill, needed again if the turn is repeated."""


class TurnEnd(Struct, frozen=True, kw_only=True):
    """The record of a turn that is stored together with its response."""

    facts: tuple[NewFact, ...] = ()
    forgotten: tuple[tuple[str, str], ...] = ()
    kind: MessageType | None = None
    """Type of the event, for contracts that store all events."""
    payload: JsonValue = None
    answers: bool = True
    """The response completes the message. False if the turn only delegates."""


class ConversationStore(Struct, frozen=True, kw_only=True):
    """The stored conversation that one message belongs to."""

    contexts: ContextStore
    context_id: str
    contract: SkillContract
    redactor: Redactor
    clock: Clock
    message_id: str = ""
    claim: Claim | None = None
    """None in a run: its lease excludes other workers, and the version of the state stops one that lost it."""
    keys: ResumeKeys | None = None
    """None in a run: it is resumed by its ID, not by a token."""

    async def load(self) -> Conversation:
        state = await self.contexts.find_state(self.context_id) or ContextState(context_id=self.context_id)
        facts: dict[str, dict[str, JsonValue]] = {}
        for fact in await self.contexts.list_facts(self.context_id):
            facts.setdefault(fact.bucket, {})[fact.key] = fact.value
        return Conversation(state=state, facts=facts)

    async def find_answer(self, message_id: str) -> AgentResponse | None:
        stored = await self.contexts.find_message(self.context_id, message_id)
        return await self.replay(stored.result) if stored is not None and stored.is_done else None

    async def replay(self, result: JsonValue) -> AgentResponse:
        """Return a stored response, with a token if the conversation has not changed since."""
        response = AgentResponse.model_validate(result)
        response = response.model_copy(update={"metadata": response.metadata.model_copy(update={"replayed": True})})
        state = await self.contexts.find_state(self.context_id)
        # A token for an earlier version would be rejected, so none is issued.
        is_current = state is not None and state.version == response.metadata.version
        return self._with_token(response, state) if state is not None and is_current else response

    async def start_turn(self, conversation: Conversation, start: TurnStart) -> ContextState:
        """Record the turn before its effect. Raises `VersionConflictError` if another worker was faster."""
        # Before the skill is called: after a crash the state shows that the turn may have had an effect.
        state = replace(conversation.state, task_state="in_progress", current_turn=start.number, agent_state_detail="")
        notes: dict[str, JsonValue] = {
            "skill": self.contract.skill,
            "message": self.message_id,
            "chain": list(start.lineage.chain),
            "ceiling": start.lineage.ceiling,
            "delegated": start.delegated,
        }
        facts = [NewFact(bucket=CAPABILITY, key=key, value=value) for key, value in notes.items()]
        facts.append(NewFact(bucket=INPUTS, key=VALUES, value=dict(start.inputs)))
        return await self._commit(
            ContextChange(
                state=state,
                facts=tuple(facts) if self._stores_facts else (),
                events=self._build_events(start.kind, start.payload, turn=start.number),
                forgotten=conversation.own_facts if start.is_new else (),
            )
        )

    async def save_advice(self, digest: str, value: JsonValue) -> None:
        # At once, not with the end of the turn: it was paid for, and a turn that is repeated uses it again.
        if self._stores_facts:
            await self._commit(ContextChange(facts=(NewFact(bucket=ADVICE, key=digest, value=value),)))

    async def finish_turn(self, state: ContextState, response: AgentResponse, end: TurnEnd) -> AgentResponse:
        """Write the state after the turn and the answer to its message in one transaction."""
        request = response.input_request
        # The commit below raises the version.
        numbers = {"version": state.version + 1, "turn": state.current_turn}
        answered = response.model_copy(update={"metadata": response.metadata.model_copy(update=numbers)})
        completion = Completion(claim=self.claim, message_id=self.message_id, result=as_json(answered))
        stored = await self._commit(
            ContextChange(
                state=replace(
                    state,
                    task_state=response.state.value,
                    agent_state_detail=response.metadata.agent_state_detail[:50],
                    input_request=cast("JsonValue", request.model_dump(mode="json")) if request else None,
                ),
                facts=end.facts if self._stores_facts else (),
                forgotten=end.forgotten,
                events=self._build_events(end.kind, end.payload, turn=state.current_turn) if end.kind else (),
                completion=completion if end.answers else None,
            )
        )
        return self._with_token(answered, stored)

    async def _commit(self, change: ContextChange) -> ContextState:
        return await self.contexts.commit(self.context_id, redact_change(change, self.redactor))

    @property
    def _stores_facts(self) -> bool:
        return self.contract.state_persistence != "none"

    def _with_token(self, response: AgentResponse, state: ContextState) -> AgentResponse:
        """Sign a token for a response that can be continued. Tokens are never stored."""
        if self.keys is None or not response.state.is_resumable or not state.is_resumable:
            return response
        expires_at = self.clock.now() + timedelta(seconds=LIFETIME_SECONDS)
        subject = TokenSubject(context_id=self.context_id)
        token = sign_token(
            subject, version=state.version, turn=state.current_turn, expires_at=expires_at, keys=self.keys
        )
        return response.model_copy(update={"metadata": response.metadata.model_copy(update={"resume_token": token})})

    def _build_events(self, kind: MessageType, payload: JsonValue, *, turn: int) -> tuple[NewEvent, ...]:
        if self.contract.state_persistence != "full_events":
            return ()
        return (NewEvent(event_type=kind.value, payload=payload, turn_number=turn, agent_id=self.contract.skill),)
