"""Contracts of skills, read from front matter and checked against the code in `impl.py`. Runs nothing.

Strict mode is for the user's own skills: an invalid field is an error. From a foreign skill everything usable is read,
and an invalid field gets its most restrictive meaning: fewer states, less authority, an effect that is never repeated.
"""

import ast
from pathlib import Path

from msgspec import Struct

from metier.capabilities.contract import ContractFields, SideEffect, SkillContract
from metier.capabilities.sync_check import MAX_SOURCE_BYTES, SYNTAX, check_file
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import Context, get_line, read_model
from metier.definitions.skills.scripts import find_impl
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.text.yaml_text import Mapping
from metier.skills.package import SkillPackage

ENTRY = "execute"
_OWN = ("bundled", "workspace", "directory")


class Conflict(Struct, frozen=True):
    key: str
    """The field to change."""
    message: str
    hint: str = ""


def list_conflicts(contract: SkillContract) -> list[Conflict]:
    """Return the fields that contradict each other."""
    found: list[Conflict] = []
    states = contract.interaction.allowed_intermediate_states
    if states and contract.state_persistence == "none":
        message = "A skill that can pause must store its state, but 'state_persistence' is none"
        found.append(Conflict("state_persistence", message, "Write facts_only or full_events"))
    if states and not contract.interaction.supports_resume:
        message = f"States {', '.join(states)} need a resume, but 'supports_resume' is false"
        found.append(Conflict("interaction_outcomes", message, "Remove the states, or support resuming"))
    if contract.execution_mode == "advisor_only" and contract.side_effects.kinds:
        message = "An advisor_only skill has no effects, but 'side_effects' lists some"
        found.append(Conflict("side_effects", message, "Use execution_mode: hybrid"))
    for kind in _forbidden(contract):
        hint = "Write autonomy_level: implement" if kind == "runs_programs" else "Write autonomy_level: suggest or more"
        message = f"Autonomy level {contract.autonomy_level!r} does not allow the side effect {kind!r}"
        found.append(Conflict("side_effects", message, hint))
    if contract.skill in contract.depends_on:
        found.append(Conflict("depends_on", f"Skill {contract.skill!r} depends on itself"))
    return found


def narrow(contract: SkillContract) -> SkillContract:
    """Return the contract without the parts that its other fields rule out."""
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
    """Return the effects beyond the autonomy level: `read` changes nothing, `suggest` starts no programs."""
    ruled_out: dict[str, tuple[SideEffect, ...]] = {
        "read": ("writes_files", "runs_programs"),
        "suggest": ("runs_programs",),
    }
    return tuple(kind for kind in ruled_out.get(contract.autonomy_level, ()) if kind in contract.side_effects.kinds)


class ContractReading(Struct, frozen=True):
    contract: SkillContract | None
    """None if one of the problems is an error."""
    problems: tuple[Problem, ...] = ()


def read_contract(skill: SkillDefinition, *, strict: bool) -> ContractReading:
    """Read the contract of a skill. Without contract fields it is that of a plain tool that only reads."""
    root = _flatten(skill, strict=strict)
    context = Context(strict=strict, unknown_keys="error" if strict else "warning")
    reading = read_model(ContractFields, root, file=str(skill.file), context=context)
    if reading.value is None:
        return ContractReading(None, reading.problems)
    # Not validated again: the values were just read.
    contract = SkillContract.model_construct(skill=canonical_name(skill.name), **dict(reading.value))
    # Fields fall back to defaults after a problem, and a conflict with a default would be a second report of it.
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
    """Merge the fields under `contract` with top-level ones, which take precedence."""
    section = skill.contract.find("contract")
    top = tuple(entry for entry in skill.contract.entries if entry.key != "contract")
    if section is None:
        return Mapping(top, skill.contract.line)
    if not isinstance(section.value, Mapping):
        # In a foreign skill `contract: text` means something else; strict reading reports it as an unknown field.
        return Mapping((*top, section) if strict else top, skill.contract.line)
    named = {entry.key for entry in top}
    return Mapping((*top, *(entry for entry in section.value.entries if entry.key not in named)), skill.contract.line)


def is_own(package: SkillPackage) -> bool:
    """Return True for a skill of this workspace or a bundled one: its contract is read strictly."""
    return package.source in _OWN


def list_modules(skill: SkillDefinition) -> list[Path]:
    """Return `impl.py` and the modules next to it, which it may import."""
    return sorted(skill.folder.glob("*.py"))


def load_contract(package: SkillPackage) -> ContractReading:
    return read_contract(package.definition, strict=is_own(package))


def check_capability(skill: SkillDefinition, *, strict: bool) -> tuple[Problem, ...]:
    """Return every problem of the contract and its code. With an `impl.py` the contract is always read strictly."""
    impl = find_impl(skill)
    if impl is None and not has_contract(skill):
        return ()
    reading = read_contract(skill, strict=strict or impl is not None)
    problems = list(reading.problems)
    if impl is not None:
        problems += _check_entry(impl)
        is_sync = reading.contract is not None and reading.contract.sync_celery
        problems += [
            problem for file in list_modules(skill) for problem in check_file(file) if is_sync or problem.code == SYNTAX
        ]
    return tuple(problems)


def _check_entry(impl: Path) -> list[Problem]:
    """Return a problem if `execute` is missing. Syntax errors are reported by `check_file`."""
    try:
        tree = ast.parse(impl.read_bytes()[:MAX_SOURCE_BYTES])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if any(isinstance(node, ast.FunctionDef) and node.name == ENTRY for node in tree.body):
        return []
    hint = f"Write `def {ENTRY}(context):` and return a mapping"
    message = f"'{impl.name}' has no function {ENTRY!r}"
    return [Problem(severity="error", code="impl_without_execute", message=message, file=str(impl), line=1, hint=hint)]
