"""What the adapter keeps of a conversation between turns: read from the store, and turned into one change of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import cast

import anyio
from msgspec import Struct, field
from pydantic import JsonValue, ValidationError

from metier.capabilities.answers import as_json
from metier.capabilities.contract import SkillContract
from metier.capabilities.delegation import Lineage
from metier.capabilities.protocol import AgentResponse, InputRequest, MessageType, MissingField
from metier.errors import MetierError
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
from metier.store.failures import ClaimLost
from metier.store.state import is_redacted, redact_change
from metier.store.tokens import LIFETIME_SECONDS, ResumeKeys, Wanted, sign_token
from metier.telemetry.redaction import Redactor

LEASE_SECONDS = 20.0
BEAT_SECONDS = 5.0
INPUTS, MEMORY, OUTPUTS, ADVICE, CAPABILITY = "inputs", "memory", "outputs", "advice", "capability"
VALUES = "values"
_OF_ONE_CONVERSATION = (INPUTS, MEMORY, ADVICE, CAPABILITY)


class Recalled(Struct, frozen=True, kw_only=True):
    """A conversation as it was left."""

    state: ContextState
    facts: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict[str, Mapping[str, JsonValue]])
    """By bucket and key."""

    @property
    def inputs(self) -> dict[str, JsonValue]:
        """Without those that were redacted: a skill must not take the mark for the value."""
        return {name: value for name, value in self._stored_inputs.items() if not is_redacted(value)}

    @property
    def redacted_inputs(self) -> tuple[str, ...]:
        """The names of inputs that were secrets, so their values are not stored."""
        return tuple(name for name, value in self._stored_inputs.items() if is_redacted(value))

    @property
    def _stored_inputs(self) -> dict[str, JsonValue]:
        values = self.facts.get(INPUTS, {}).get(VALUES)
        return dict(values) if isinstance(values, dict) else {}

    @property
    def asked(self) -> tuple[MissingField, ...]:
        """The fields that the conversation waits for."""
        request = self.state.input_request if self.state.task_state == "input_required" else None
        try:
            return InputRequest.model_validate(request).missing_fields
        except ValidationError:
            # None, or put there by a program with `put_state`.
            return ()

    @property
    def memory(self) -> dict[str, JsonValue]:
        return dict(self.facts.get(MEMORY, {}))

    @property
    def advice(self) -> dict[str, JsonValue]:
        return dict(self.facts.get(ADVICE, {}))

    def note(self, key: str) -> JsonValue:
        return self.facts.get(CAPABILITY, {}).get(key)

    @property
    def forgettable(self) -> tuple[tuple[str, str], ...]:
        """What a new conversation in the same context does not begin with."""
        return tuple((bucket, key) for bucket in _OF_ONE_CONVERSATION for key in self.facts.get(bucket, {}))


class Note(Struct, frozen=True, kw_only=True):
    """An event of the conversation, kept where the contract asks for all of them."""

    kind: MessageType
    payload: JsonValue


class Beginning(Struct, frozen=True, kw_only=True):
    """What is on record of a turn before it runs."""

    turn: int
    inputs: Mapping[str, JsonValue]
    lineage: Lineage
    is_new: bool = False
    delegated: JsonValue = None
    """What another skill gave, which the turn needs again when it is repeated."""
    notes: tuple[Note, ...] = ()


class Ending(Struct, frozen=True, kw_only=True):
    """What is kept of a turn beside its response."""

    facts: tuple[NewFact, ...] = ()
    forgotten: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()
    claim: Claim | None = None
    """Whose message is answered by this; nothing while the turn is only handed on."""


class Memory(Struct, frozen=True, kw_only=True):
    """The store, as one turn uses it."""

    contexts: ContextStore
    context_id: str
    contract: SkillContract
    redactor: Redactor
    keys: ResumeKeys
    clock: Clock
    owner: str

    async def recall(self) -> Recalled:
        state = await self.contexts.find_state(self.context_id) or ContextState(context_id=self.context_id)
        facts: dict[str, dict[str, JsonValue]] = {}
        for fact in await self.contexts.list_facts(self.context_id):
            facts.setdefault(fact.bucket, {})[fact.key] = fact.value
        return Recalled(state=state, facts=facts)

    async def hold(self, message_id: str, work: Callable[[Claim], Awaitable[AgentResponse]]) -> AgentResponse:
        """Work on a message, and keep the right to it meanwhile. Raises `DuplicateMessageError`.

        A message that the work did not complete is given back.
        """
        claim = await self.contexts.claim_message(self.context_id, message_id, owner=self.owner, seconds=LEASE_SECONDS)
        failure: MetierError | None = None
        response = AgentResponse()
        try:
            async with anyio.create_task_group() as beats:
                beats.start_soon(self._beat, claim)
                try:
                    response = await work(claim)
                except MetierError as error:
                    # Past the group, which would wrap it.
                    failure = error
                beats.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self.contexts.release_claim(claim)
        if failure is not None:
            raise failure
        return response

    async def _beat(self, claim: Claim) -> None:
        while True:
            await anyio.sleep(BEAT_SECONDS)
            try:
                await self.contexts.renew_claim(claim, seconds=LEASE_SECONDS)
            except ClaimLost:
                # The worker that took it over completes it; our own completion will be refused, and nothing is written.
                return

    async def begin(self, recalled: Recalled, beginning: "Beginning", claim: Claim) -> ContextState:
        """On record before the effect: of two that work on one conversation the second stops here."""
        turn = beginning.turn
        state = replace(recalled.state, task_state="in_progress", current_turn=turn, agent_state_detail="")
        notes: dict[str, JsonValue] = {
            "skill": self.contract.skill,
            "message": claim.message_id,
            "chain": list(beginning.lineage.chain),
            "ceiling": beginning.lineage.ceiling,
            "delegated": beginning.delegated,
        }
        facts = [NewFact(bucket=CAPABILITY, key=key, value=value) for key, value in notes.items()]
        facts.append(NewFact(bucket=INPUTS, key=VALUES, value=dict(beginning.inputs)))
        change = ContextChange(
            state=state,
            facts=tuple(facts) if self._keeps_facts else (),
            events=self._events(beginning.notes, turn),
            forgotten=recalled.forgettable if beginning.is_new else (),
        )
        return await self.contexts.commit(self.context_id, redact_change(change, self.redactor))

    async def keep_advice(self, digest: str, value: JsonValue) -> None:
        """At once: what was paid for is not asked again when this turn is repeated."""
        if self._keeps_facts:
            change = ContextChange(facts=(NewFact(bucket=ADVICE, key=digest, value=value),))
            await self.contexts.commit(self.context_id, redact_change(change, self.redactor))

    async def keep(self, state: ContextState, response: AgentResponse, ending: "Ending") -> AgentResponse:
        """Write how the turn ended, and the answer to its message, in one transaction."""
        request = response.input_request
        version = state.version + 1
        numbers = {"version": version, "turn": state.current_turn}
        answered = response.model_copy(update={"metadata": response.metadata.model_copy(update=numbers)})
        change = ContextChange(
            state=replace(
                state,
                task_state=response.state.value,
                agent_state_detail=response.metadata.agent_state_detail[:50],
                input_request=cast("JsonValue", request.model_dump(mode="json")) if request else None,
            ),
            facts=ending.facts if self._keeps_facts else (),
            forgotten=ending.forgotten,
            events=self._events(ending.notes, state.current_turn),
            completion=Completion(claim=ending.claim, result=as_json(answered)) if ending.claim else None,
        )
        stored = await self.contexts.commit(self.context_id, redact_change(change, self.redactor))
        return self.with_token(answered, stored)

    @property
    def _keeps_facts(self) -> bool:
        return self.contract.state_persistence != "none"

    def with_token(self, response: AgentResponse, state: ContextState) -> AgentResponse:
        """Signed now: a token is not kept anywhere."""
        if not response.state.is_resumable or not state.is_resumable:
            return response
        expires_at = self.clock.now() + timedelta(seconds=LIFETIME_SECONDS)
        wanted = Wanted(context_id=self.context_id)
        token = sign_token(
            wanted, version=state.version, turn=state.current_turn, expires_at=expires_at, keys=self.keys
        )
        return response.model_copy(update={"metadata": response.metadata.model_copy(update={"resume_token": token})})

    def _events(self, notes: tuple[Note, ...], turn: int) -> tuple[NewEvent, ...]:
        if self.contract.state_persistence != "full_events":
            return ()
        return tuple(
            NewEvent(event_type=note.kind.value, payload=note.payload, turn_number=turn, agent_id=self.contract.skill)
            for note in notes
        )
