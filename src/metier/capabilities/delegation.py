"""Handing work to another skill: who may, how deep, and under which name, so that it happens once."""

import hashlib
from typing import Protocol

from msgspec import Struct, field
from pydantic import JsonValue

from metier.capabilities.answers import build_blocked
from metier.capabilities.contract import MAX_DELEGATION_DEPTH, SkillContract, is_above
from metier.capabilities.protocol import AgentResponse, Delegation
from metier.decisions import AutonomyLevel, SkillCall
from metier.definitions.names import canonical_name

MAX_CONTEXT_ID = 255


class DelegationRequest(Struct, frozen=True, kw_only=True):
    """Work for another skill, as the router gets it."""

    skill: str
    inputs: dict[str, JsonValue]
    context_id: str
    """Of the child: on record with the parent before the child starts, so that it is found, not started again."""
    parent_context_id: str
    message_id: str
    chain: tuple[str, ...]
    """The skills that wait for this one, the first caller first."""
    ceiling: AutonomyLevel
    """The child may not do more than the one that sends it."""
    answers: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """What was given to the questions of the child, where it asked."""

    def as_call(self) -> SkillCall:
        return SkillCall(skill=self.skill, inputs=self.inputs, chain=self.chain, ceiling=self.ceiling)


class DelegationRouter(Protocol):
    """Starts the child, or finds it, and says how it stands.

    `runtime.delegation.skill_runs` makes it a run of its own;
    `adapter.ConversationRouter` has only conversations to offer.
    """

    async def delegate(self, request: DelegationRequest) -> AgentResponse: ...


class Lineage(Struct, frozen=True):
    """Where a turn is in a chain of delegations."""

    chain: tuple[str, ...] = ()
    ceiling: AutonomyLevel = "commit"


def find_refusal(delegation: Delegation, contract: SkillContract, lineage: Lineage) -> AgentResponse | None:
    """Why the work may not be handed on; nothing when it may."""
    target = canonical_name(delegation.skill)
    chain = (*lineage.chain, contract.skill)
    if target not in contract.depends_on:
        message = f"Skill {contract.skill!r} delegates to {target!r}, which its depends_on does not name"
        return build_blocked("undeclared_dependency", message)
    if target in chain:
        message = f"Delegation goes in a circle: {' → '.join((*chain, target))}"
        return build_blocked("delegation_cycle", message)
    if len(chain) >= MAX_DELEGATION_DEPTH:
        message = f"Delegation is deeper than {MAX_DELEGATION_DEPTH}: {' → '.join((*chain, target))}"
        return build_blocked("delegation_depth", message)
    return None


def find_excess(contract: SkillContract, lineage: Lineage) -> AgentResponse | None:
    """Authority only narrows: a child that may do more than its parent does not run."""
    if not is_above(contract.autonomy_level, lineage.ceiling):
        return None
    message = (
        f"Skill {contract.skill!r} has the autonomy level {contract.autonomy_level!r}, and was sent by one that has"
        f" only {lineage.ceiling!r}"
    )
    return build_blocked("authority", message)


def lower(lineage: Lineage, contract: SkillContract) -> AutonomyLevel:
    return lineage.ceiling if is_above(contract.autonomy_level, lineage.ceiling) else contract.autonomy_level


def name_child(context_id: str, *, version: int, skill: str) -> str:
    """Another name for each time that work is handed on: the version of the parent's state never comes again."""
    name = f"{context_id}/{version}.{canonical_name(skill)}"
    if len(name) <= MAX_CONTEXT_ID:
        return name
    return f"{name[:180]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
