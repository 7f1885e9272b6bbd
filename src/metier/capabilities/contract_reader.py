"""Contracts of skills, read from front matter, each problem with its line.

The strict mode is for your own skills: a wrong field is an error. From a foreign skill, everything usable is read, and
the rest counts as the least that it could have meant: fewer states, less authority, an effect never repeated.
"""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Self, cast

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.contract import (
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
    Schema,
    SideEffect,
    SideEffects,
    SkillContract,
)
from metier.capabilities.schema_node import find_schema_fault, json_value
from metier.definitions.names import canonical_name
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.skill_rules import CONTRACT_FIELDS
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Entry, Mapping
from metier.definitions.text.yaml_text import Sequence as ListNode

_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

_INTERACTION_KEYS = ("allowed_intermediate_states", "max_turns", "supports_resume", "input_request_schema")
_FIELD_KEYS = ("name", "type", "description", "required", "enum")
_EFFECT_KEYS = ("kinds", "repeat", "paths")
_FAILURE_KEYS = ("code", "description", "retryable")


class ContractFields(Struct, frozen=True):
    """The fields of one mapping. What is wrong is an error or a warning, as `fields` is strict or not."""

    fields: Fields

    def text(self, key: str) -> str:
        return self.fields.text(key) or ""

    def word[Word: str](self, key: str, allowed: Sequence[Word], *, default: Word) -> Word:
        """One of a fixed set of words, in any case."""
        entry = self.fields.find(key)
        if entry is None:
            return default
        written = self.text(key).lower()
        if written in allowed:
            return cast("Word", written)  # just compared
        hint = hint_nearest(written, allowed) or f"Write one of: {', '.join(allowed)}"
        self.fields.deviate("contract_value", f"Field {key!r} cannot be {written!r}", line=entry.line, hint=hint)
        return default

    def words[Word: str](self, key: str, allowed: Sequence[Word]) -> tuple[Word, ...]:
        """Some of a fixed set of words; `none` is none of them."""
        entry = self.fields.find(key)
        found: list[Word] = []
        for text in self.fields.texts(key) or ():
            word = text.lower()
            if word in allowed:
                found.append(cast("Word", word))  # just compared
            elif word != "none":
                hint = hint_nearest(word, allowed) or f"Known are: {', '.join(allowed)}"
                line = entry.line if entry else None
                self.fields.deviate("contract_value", f"Field {key!r} cannot hold {text!r}", line=line, hint=hint)
        return tuple(dict.fromkeys(found))

    def number(self, key: str, *, low: float, high: float, default: float) -> float:
        """Within its bounds; a lenient reader takes the bound for what lies beyond it."""
        entry = self.fields.find(key)
        if entry is None:
            return default
        value = json_value(entry.value)
        number = None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
        if number is not None and low <= number <= high:
            return number
        message = f"Field {key!r} must be a number from {low:g} to {high:g}"
        self.fields.deviate("contract_value", message, line=entry.line)
        return default if number is None else min(max(number, low), high)

    def whole(self, key: str, *, low: int, high: int, default: int) -> int:
        """The same for a whole number; a fraction is a problem."""
        value = self.number(key, low=low, high=high, default=default)
        entry = self.fields.find(key)
        if entry is not None and not value.is_integer():
            message = f"Field {key!r} must be a whole number from {low} to {high}"
            self.fields.deviate("contract_value", message, line=entry.line)
        return int(value)

    def choices(self, key: str) -> tuple[JsonValue, ...]:
        """The values of a list, of whatever types."""
        entry = self.fields.find(key)
        if entry is None:
            return ()
        values = json_value(entry.value)
        if not isinstance(values, list):
            self.fields.deviate("contract_shape", f"Field {key!r} must be a list", line=entry.line)
            return ()
        return tuple(values)

    def truth(self, key: str, *, default: bool) -> bool:
        entry = self.fields.find(key)
        if entry is None:
            return default
        written = self.text(key).lower()
        if written not in _TRUTH:
            message = f"Field {key!r} must be true or false"
            self.fields.deviate("contract_value", message, line=entry.line)
        return _TRUTH.get(written, default)

    def paths(self, key: str) -> tuple[str, ...]:
        """Relative paths that stay where they are."""
        entry = self.fields.find(key)
        found: list[str] = []
        for text in self.fields.texts(key) or ():
            path = PurePosixPath(text)
            if path.is_absolute() or ".." in path.parts or "\\" in text:
                message = f"Path {text!r} in {key!r} must be relative and lead nowhere else"
                self.fields.deviate("contract_path", message, line=entry.line if entry else None)
            else:
                found.append(str(path))
        return tuple(found)

    def schema(self, key: str) -> Schema | None:
        entry = self.fields.find(key)
        if entry is None:
            return None
        fault = find_schema_fault(entry.value)
        if fault is not None:
            message = f"Field {key!r} is not a JSON Schema that can be used: {fault.why}"
            self.fields.deviate("contract_schema", message, line=fault.line)
            return None
        schema = json_value(entry.value)
        return schema if isinstance(schema, dict) else None

    def inner(self, key: str, known: Sequence[str]) -> Self | None:
        """The fields of the mapping below a key; nothing, and a problem, where it is none."""
        entry = self.fields.find(key)
        if entry is None:
            return None
        if not isinstance(entry.value, Mapping):
            hint = f"Write below it: {', '.join(known)}"
            self.fields.deviate("contract_shape", f"Field {key!r} must be a mapping", line=entry.line, hint=hint)
            return None
        return self._below(entry.value, known)

    def each(self, key: str, known: Sequence[str], *, alone: str) -> list[Self]:
        """The fields of each item of a list; an item of one word means that word as `alone`."""
        entry = self.fields.find(key)
        if entry is None:
            return []
        if not isinstance(entry.value, ListNode):
            self.fields.deviate("contract_shape", f"Field {key!r} must be a list", line=entry.line)
            return []
        found: list[Self] = []
        for item in entry.value.items:
            if isinstance(item, ListNode):
                self.fields.deviate("contract_shape", f"An item of {key!r} must be a mapping", line=item.line)
                continue
            mapping = item if isinstance(item, Mapping) else Mapping((Entry(alone, item.line, item),), item.line)
            below = self._below(mapping, known)
            name = below.text(alone)
            if not name:
                self.fields.deviate("contract_shape", f"An item of {key!r} has no {alone!r}", line=item.line)
            elif any(name == other.text(alone) for other in found):
                message = f"Two items of {key!r} have the {alone} {name!r}"
                self.fields.deviate("contract_shape", message, line=item.line)
            else:
                found.append(below)
        return found

    def check_keys(self, known: Sequence[str]) -> None:
        for entry in self.fields.mapping.entries:
            if entry.key not in known:
                hint = hint_nearest(entry.key, known) or f"Known are: {', '.join(known)}"
                message = f"A contract has no field {entry.key!r}"
                self.fields.deviate("contract_key", message, line=entry.line, hint=hint)

    def _below(self, mapping: Mapping, known: Sequence[str]) -> Self:
        fields = Fields(mapping, file=self.fields.file, strict=self.fields.strict, problems=self.fields.problems)
        below = type(self)(fields)
        below.check_keys(known)
        return below


class Conflict(Struct, frozen=True):
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


class ContractReading(Struct, frozen=True):
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
