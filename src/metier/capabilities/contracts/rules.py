"""Promises of a contract that cannot hold together, and what is left of one whose author wrote such. Pure."""

from dataclasses import replace

from metier.capabilities.contracts.contract import SideEffect, SkillContract
from metier.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Conflict:
    key: str
    """The field to change."""
    message: str
    hint: str = ""


def find_conflicts(contract: SkillContract) -> list[Conflict]:
    """Every pair of fields that contradict each other."""
    found: list[Conflict] = []
    states = contract.interaction.allowed_intermediate_states
    if states and contract.state_persistence == "none":
        message = "A skill that can pause must keep something: 'state_persistence' is none"
        found.append(Conflict("state_persistence", message, "Write facts_only or full_events"))
    if states and not contract.interaction.supports_resume:
        message = f"States {', '.join(states)} need a resume, and 'supports_resume' is false"
        found.append(Conflict("interaction_outcomes", message, "Leave the states out, or support the resume"))
    if contract.execution_mode == "advisor_only" and contract.side_effects.kinds:
        message = "An advisor_only skill has no effects, and 'side_effects' names some"
        found.append(Conflict("side_effects", message, "Use execution_mode: hybrid"))
    for kind in _forbidden(contract):
        hint = "Write autonomy_level: implement" if kind == "runs_programs" else "Write autonomy_level: suggest or more"
        message = f"Autonomy level {contract.autonomy_level!r} does not go as far as the side effect {kind!r}"
        found.append(Conflict("side_effects", message, hint))
    if contract.skill in contract.depends_on:
        found.append(Conflict("depends_on", f"Skill {contract.skill!r} depends on itself"))
    return found


def narrow(contract: SkillContract) -> SkillContract:
    """The contract without what its own other fields rule out."""
    interaction = contract.interaction
    if not interaction.supports_resume or contract.state_persistence == "none":
        interaction = replace(interaction, allowed_intermediate_states=())
    effects = contract.side_effects
    ruled_out = effects.kinds if contract.execution_mode == "advisor_only" else _forbidden(contract)
    kinds = tuple(kind for kind in effects.kinds if kind not in ruled_out)
    depends_on = tuple(name for name in contract.depends_on if name != contract.skill)
    return replace(contract, interaction=interaction, side_effects=replace(effects, kinds=kinds), depends_on=depends_on)


def _forbidden(contract: SkillContract) -> tuple[SideEffect, ...]:
    """`read` changes nothing here; `suggest` writes proposals, but starts no program."""
    ruled_out: dict[str, tuple[SideEffect, ...]] = {
        "read": ("writes_files", "runs_programs"),
        "suggest": ("runs_programs",),
    }
    return tuple(kind for kind in ruled_out.get(contract.autonomy_level, ()) if kind in contract.side_effects.kinds)
