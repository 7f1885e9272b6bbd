"""Delegation to another skill: limits on callers and depth, and names that make a delegation happen once."""

import hashlib
from typing import Protocol

from msgspec import Struct, field
from pydantic import JsonValue

from metier.capabilities.answers import build_blocked
from metier.capabilities.contract import MAX_DELEGATION_DEPTH, SkillContract, is_above
from metier.capabilities.protocol import AgentResponse, Delegation
from metier.decisions import AutonomyLevel, SkillCall
from metier.definitions.names import canonical_name

# The limit of the store for this column.
MAX_CONTEXT_ID = 255


class DelegationRequest(Struct, frozen=True, kw_only=True):
    """A call of another skill, for the router."""

    skill: str
    inputs: dict[str, JsonValue]
    context_id: str
    """Of the child. The parent records it before the child starts, so that a crash does not start a second child."""
    parent_context_id: str
    message_id: str
    chain: tuple[str, ...]
    """The skills that wait for this one, first caller first."""
    ceiling: AutonomyLevel
    """Maximum autonomy level of the child: that of its parent."""
    answers: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Answers to the child's questions."""

    def as_call(self) -> SkillCall:
        return SkillCall(skill=self.skill, inputs=self.inputs, chain=self.chain, ceiling=self.ceiling)


class DelegationRouter(Protocol):
    """Starts the child, or finds it, and returns its state.

    `runtime.skill_router` creates a run for it, `adapter.ConversationRouter` a conversation.
    """

    async def delegate(self, request: DelegationRequest) -> AgentResponse: ...


class Lineage(Struct, frozen=True):
    """Position of a turn in a chain of delegations."""

    chain: tuple[str, ...] = ()
    ceiling: AutonomyLevel = "commit"


def find_refusal(delegation: Delegation, contract: SkillContract, lineage: Lineage) -> AgentResponse | None:
    """Return why the delegation is not allowed."""
    target = canonical_name(delegation.skill)
    chain = (*lineage.chain, contract.skill)
    if target not in contract.depends_on:
        message = f"Skill {contract.skill!r} delegates to {target!r}, which is not in its depends_on"
        return build_blocked("undeclared_dependency", message)
    if target in chain:
        message = f"Delegation cycle: {' → '.join((*chain, target))}"
        return build_blocked("delegation_cycle", message)
    if len(chain) >= MAX_DELEGATION_DEPTH:
        message = f"Delegation is nested more than {MAX_DELEGATION_DEPTH} deep: {' → '.join((*chain, target))}"
        return build_blocked("delegation_depth", message)
    return None


def find_excess(contract: SkillContract, lineage: Lineage) -> AgentResponse | None:
    """Return why the child's authority is too high: it never exceeds its parent's."""
    if not is_above(contract.autonomy_level, lineage.ceiling):
        return None
    message = (
        f"Skill {contract.skill!r} has autonomy level {contract.autonomy_level!r}, but its caller has only"
        f" {lineage.ceiling!r}"
    )
    return build_blocked("authority", message)


def compute_ceiling(lineage: Lineage, contract: SkillContract) -> AutonomyLevel:
    return lineage.ceiling if is_above(contract.autonomy_level, lineage.ceiling) else contract.autonomy_level


def name_child(context_id: str, *, version: int, skill: str) -> str:
    """Return a new name for each delegation: the version of the parent's state never repeats."""
    name = f"{context_id}/{version}.{canonical_name(skill)}"
    if len(name) <= MAX_CONTEXT_ID:
        return name
    # The start stays readable, and the hash keeps names of deep chains different.
    return f"{name[:180]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
