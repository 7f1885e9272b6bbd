"""Read a skill's contract from its front matter, and say what is wrong with it, each with its line.

Strict is for skills of one's own: a wrong field is an error. Of a foreign skill everything usable is taken, and what
is not usable counts as the least that it could have meant: fewer states, less authority, an effect never repeated.
"""

from metier.capabilities.contracts.contract import (
    AUTONOMY_LEVELS,
    DEFAULT_TIMEOUT_SECONDS,
    DEFAULT_TURNS,
    EXECUTION_MODES,
    INPUT_TYPES,
    INTERMEDIATE_STATES,
    MAX_FIX_ITERATIONS,
    MAX_TIMEOUT_SECONDS,
    MAX_TURNS,
    PERSISTENCE_LEVELS,
    REPEATS,
    SIDE_EFFECTS,
    FailureMode,
    InputField,
    InteractionOutcomes,
    SideEffects,
    SkillContract,
)
from metier.capabilities.contracts.fields import ContractFields
from metier.capabilities.contracts.rules import find_conflicts, narrow
from metier.dataclass import dataclass
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.skill_rules import CONTRACT_FIELDS
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Mapping

_INTERACTION_KEYS = ("allowed_intermediate_states", "max_turns", "supports_resume", "input_request_schema")
_FIELD_KEYS = ("name", "type", "description", "required", "enum")
_EFFECT_KEYS = ("kinds", "repeat", "paths")
_FAILURE_KEYS = ("code", "description", "retryable")


@dataclass(frozen=True, slots=True)
class ContractReading:
    contract: SkillContract | None
    """Nothing when one of the problems is an error."""
    problems: tuple[Problem, ...] = ()


def read_contract(skill: SkillDefinition, *, strict: bool) -> ContractReading:
    """The contract of a skill; one that says nothing has the contract of a plain tool that only reads."""
    fields = Fields(_flatten(skill, strict=strict), file=str(skill.file), strict=strict)
    contract = _read(ContractFields(fields), canonical_name(skill.name))
    # A field that could not be read is not also contradicted: one mistake is told once.
    for conflict in find_conflicts(contract) if not fields.problems else ():
        entry = fields.find(conflict.key)
        line = entry.line if entry else skill.contract.line
        fields.deviate("contract_conflict", conflict.message, line=line, hint=conflict.hint)
    if has_errors(fields.problems):
        return ContractReading(None, tuple(fields.problems))
    return ContractReading(narrow(contract), tuple(fields.problems))


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


def _read(fields: ContractFields, skill: str) -> SkillContract:
    fields.check_keys(CONTRACT_FIELDS[1:])
    interaction = _read_interaction(fields.inner("interaction_outcomes", _INTERACTION_KEYS))
    fixes = fields.whole("max_fix_iterations", low=0, high=MAX_FIX_ITERATIONS, default=MAX_FIX_ITERATIONS)
    return SkillContract(
        skill=skill,
        interaction=interaction,
        state_persistence=fields.word(
            "state_persistence",
            PERSISTENCE_LEVELS,
            default="facts_only" if interaction.allowed_intermediate_states else "none",
        ),
        input_request_jsonschema=fields.schema("input_request_jsonschema"),
        input_schema=fields.schema("input_schema"),
        output_schema=fields.schema("output_schema"),
        execution_mode=fields.word("execution_mode", EXECUTION_MODES, default="deterministic"),
        autonomy_level=fields.word("autonomy_level", AUTONOMY_LEVELS, default="read"),
        side_effects=_read_side_effects(fields),
        timeout_seconds=fields.number(
            "timeout_seconds", low=1, high=MAX_TIMEOUT_SECONDS, default=DEFAULT_TIMEOUT_SECONDS
        ),
        max_fix_iterations=fixes,
        required_artifacts=fields.paths("required_artifacts"),
        failure_modes=tuple(
            FailureMode(
                code=item.text("code"),
                description=item.text("description"),
                retryable=item.truth("retryable", default=False),
            )
            for item in fields.each("failure_modes", _FAILURE_KEYS, alone="code")
        ),
        depends_on=tuple(canonical_name(name) for name in fields.fields.texts("depends_on") or ()),
        sync_celery=_read_sync(fields),
    )


def _read_interaction(fields: ContractFields | None) -> InteractionOutcomes:
    if fields is None:
        return InteractionOutcomes()
    return InteractionOutcomes(
        allowed_intermediate_states=fields.words("allowed_intermediate_states", INTERMEDIATE_STATES),
        max_turns=fields.whole("max_turns", low=1, high=MAX_TURNS, default=DEFAULT_TURNS),
        supports_resume=fields.truth("supports_resume", default=True),
        input_request_schema=tuple(
            _read_input(item) for item in fields.each("input_request_schema", _FIELD_KEYS, alone="name")
        ),
    )


def _read_input(fields: ContractFields) -> InputField:
    return InputField(
        name=fields.text("name"),
        type=fields.word("type", INPUT_TYPES, default="string"),
        description=fields.text("description"),
        required=fields.truth("required", default=True),
        enum=fields.choices("enum"),
    )


def _read_side_effects(fields: ContractFields) -> SideEffects:
    """A list of kinds, or a mapping that also says what repeating means and where it writes."""
    entry = fields.fields.find("side_effects")
    if entry is None:
        return SideEffects()
    if isinstance(entry.value, Mapping) and (inner := fields.inner("side_effects", _EFFECT_KEYS)):
        return SideEffects(
            kinds=inner.words("kinds", SIDE_EFFECTS),
            repeat=inner.word("repeat", REPEATS, default="opaque"),
            paths=inner.paths("paths"),
        )
    before = len(fields.fields.problems)
    kinds = fields.words("side_effects", SIDE_EFFECTS)
    # What a lenient reader does not understand may be anything, so far as its autonomy goes.
    return SideEffects(kinds=kinds if len(fields.fields.problems) == before else SIDE_EFFECTS)


def _read_sync(fields: ContractFields) -> bool:
    """`true`, or `{compatible: true}`."""
    entry = fields.fields.find("sync_celery")
    if (
        entry is not None
        and isinstance(entry.value, Mapping)
        and (inner := fields.inner("sync_celery", ("compatible",)))
    ):
        return inner.truth("compatible", default=True)
    return fields.truth("sync_celery", default=True)
