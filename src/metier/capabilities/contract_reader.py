"""Contracts of skills, read from front matter, each problem with its line.

The strict mode is for your own skills: a wrong field is an error. From a foreign skill, everything usable is read, and
the rest counts as the least that it could have meant: fewer states, less authority, an effect never repeated.
"""

from msgspec import Struct

from metier.capabilities.contract import ContractFields, SideEffect, SkillContract
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import Context, get_line, read_model
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.text.yaml_text import Mapping


class Conflict(Struct, frozen=True):
    key: str
    """The field to change."""
    message: str
    hint: str = ""


def list_conflicts(contract: SkillContract) -> list[Conflict]:
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
        interaction = interaction.model_copy(update={"allowed_intermediate_states": ()})
    effects = contract.side_effects
    ruled_out = effects.kinds if contract.execution_mode == "advisor_only" else _forbidden(contract)
    kinds = tuple(kind for kind in effects.kinds if kind not in ruled_out)
    depends_on = tuple(name for name in contract.depends_on if name != contract.skill)
    effects = effects.model_copy(update={"kinds": kinds})
    return contract.model_copy(update={"interaction": interaction, "side_effects": effects, "depends_on": depends_on})


def _forbidden(contract: SkillContract) -> tuple[SideEffect, ...]:
    """`read` changes nothing here; `suggest` writes proposals, but starts no program."""
    ruled_out: dict[str, tuple[SideEffect, ...]] = {
        "read": ("writes_files", "runs_programs"),
        "suggest": ("runs_programs",),
    }
    return tuple(kind for kind in ruled_out.get(contract.autonomy_level, ()) if kind in contract.side_effects.kinds)


class ContractReading(Struct, frozen=True):
    contract: SkillContract | None
    """Nothing when one of the problems is an error."""
    problems: tuple[Problem, ...] = ()


def read_contract(skill: SkillDefinition, *, strict: bool) -> ContractReading:
    """The contract of a skill; one without fields has the contract of a plain tool that only reads."""
    root = _flatten(skill, strict=strict)
    context = Context(strict=strict, unknown_keys="error" if strict else "warning")
    reading = read_model(ContractFields, root, file=str(skill.file), context=context)
    if reading.value is None:
        return ContractReading(None, reading.problems)
    contract = SkillContract.model_construct(skill=canonical_name(skill.name), **dict(reading.value))
    # A field that could not be read is not also contradicted: one mistake is reported once.
    conflicts = () if reading.problems else list_conflicts(contract)
    problems = (
        *reading.problems,
        *(
            Problem(
                severity="error" if strict else "warning",
                code="contract_conflict",
                message=conflict.message,
                file=str(skill.file),
                line=get_line(root, [conflict.key]),
                hint=conflict.hint,
            )
            for conflict in conflicts
        ),
    )
    return ContractReading(None if has_errors(problems) else narrow(contract), problems)


def has_contract(skill: SkillDefinition) -> bool:
    return bool(skill.contract.entries)


def _flatten(skill: SkillDefinition, *, strict: bool) -> Mapping:
    """Fields below `contract` beside those at the top, which win."""
    below = skill.contract.find("contract")
    top = tuple(entry for entry in skill.contract.entries if entry.key != "contract")
    if below is None:
        return Mapping(top, skill.contract.line)
    if not isinstance(below.value, Mapping):
        # In a foreign skill `contract: text` means something else; strict reading reports it as an unknown field.
        return Mapping((*top, below) if strict else top, skill.contract.line)
    named = {entry.key for entry in top}
    return Mapping((*top, *(entry for entry in below.value.entries if entry.key not in named)), skill.contract.line)
