"""The contract of a skill with its callers: the model of its fields in the front matter."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, TypeAdapter, ValidationInfo
from pydantic_core import PydanticUseDefault

from metier.capabilities.schema_node import find_schema_fault, json_value
from metier.decisions import AutonomyLevel
from metier.definitions.names import canonical_name
from metier.definitions.reader import (
    FileModel,
    Flag,
    Text,
    Texts,
    context_of,
    one_of,
    report_unknown_keys,
    some_of,
    within,
)
from metier.definitions.text.yaml_text import Entry, Mapping, Scalar, Sequence, flat_texts, list_texts
from metier.tools.effects import Effect, Risk

type Schema = dict[str, JsonValue]
type IntermediateState = Literal["input_required", "delegating", "paused"]
type StatePersistence = Literal["none", "facts_only", "full_events"]
type ExecutionMode = Literal["deterministic", "hybrid", "advisor_only"]
type SideEffect = Literal["writes_files", "network", "runs_programs"]
type InputType = Literal["string", "integer", "number", "boolean", "object", "array"]

INTERMEDIATE_STATES: tuple[IntermediateState, ...] = ("input_required", "delegating", "paused")
PERSISTENCE_LEVELS: tuple[StatePersistence, ...] = ("none", "facts_only", "full_events")
EXECUTION_MODES: tuple[ExecutionMode, ...] = ("deterministic", "hybrid", "advisor_only")
AUTONOMY_LEVELS: tuple[AutonomyLevel, ...] = ("read", "suggest", "implement", "commit")
SIDE_EFFECTS: tuple[SideEffect, ...] = ("writes_files", "network", "runs_programs")
INPUT_TYPES: tuple[InputType, ...] = ("string", "integer", "number", "boolean", "object", "array")
REPEATS: tuple[Effect, ...] = ("idempotent", "keyed", "opaque")

DEFAULT_TURNS = 8
MAX_TURNS = 20
MAX_FIX_ITERATIONS = 3
DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 3600.0
MAX_DELEGATION_DEPTH = 5


def _read_each(alone: str) -> BeforeValidator:
    """The mappings of a list. An item of one word is that word as `alone`, which no two items share."""

    def read(value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Scalar | Sequence | Mapping):
            return value
        context = context_of(info)
        if not isinstance(value, Sequence):
            context.deviate(value, "not_a_list", "must be a list")
            raise PydanticUseDefault
        found: dict[str, Mapping] = {}
        for item in value.items:
            if isinstance(item, Sequence):
                context.deviate(item, "not_a_mapping", "must be a mapping")
                continue
            mapping = item if isinstance(item, Mapping) else Mapping((Entry(alone, item.line, item),), item.line)
            entry = mapping.find(alone)
            name = ", ".join(flat_texts(entry.value)) if entry else ""
            if not name:
                context.deviate(item, f"missing_{alone}", f"has no {alone!r}")
            elif name in found:
                context.deviate(item, f"duplicate_{alone}", f"repeats the {alone} {name!r}")
            else:
                found[name] = mapping
        return tuple(found.values())

    return BeforeValidator(read)


def _read_section(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Scalar | Sequence):
        context_of(info).deviate(value, "not_a_mapping", "must be a mapping")
        raise PydanticUseDefault
    return value


def _read_choices(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, Scalar | Sequence | Mapping):
        return value
    values = json_value(value)
    if not isinstance(values, list):
        context_of(info).deviate(value, "not_a_list", "must be a list")
        raise PydanticUseDefault
    return tuple(values)


def _read_schema(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, Scalar | Sequence | Mapping):
        return value
    if (fault := find_schema_fault(value)) is not None:
        message = f"is not a JSON Schema that can be used: {fault.why}"
        context_of(info).deviate(value, "contract_schema", message, line=fault.line)
        raise PydanticUseDefault
    return json_value(value)


def _check_paths(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, Scalar | Sequence | Mapping):
        return value
    found: list[str] = []
    for text in list_texts(value):
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or "\\" in text:
            context_of(info).deviate(value, "contract_path", f"has the path {text!r}, which is not inside the folder")
        else:
            found.append(str(path))
    return tuple(found)


def _read_effects(value: object, info: ValidationInfo) -> object:
    """A list of kinds, or a mapping that also has the meaning of a repetition and the paths."""
    if not isinstance(value, Scalar | Sequence):
        return value
    context = context_of(info)
    before = len(context.findings)
    reading = TypeAdapter(_Kinds).validate_python(value, context=context)
    # A word that a lenient reader does not understand may be any effect, as far as its autonomy goes.
    return SideEffects(kinds=reading if len(context.findings) == before else SIDE_EFFECTS)


def _read_sync(value: object, info: ValidationInfo) -> object:
    """`true`, or `{compatible: true}`."""
    if not isinstance(value, Mapping):
        return value
    report_unknown_keys(value, ("compatible",), context_of(info))
    entry = value.find("compatible")
    return True if entry is None else entry.value


_Schema = Annotated[Schema | None, BeforeValidator(_read_schema)]
_Paths = Annotated[tuple[str, ...], BeforeValidator(_check_paths)]
_Kinds = Annotated[tuple[SideEffect, ...], some_of(*SIDE_EFFECTS)]


class InputField(FileModel):
    """One value that a skill may ask for."""

    name: Text
    type: Annotated[InputType, one_of(*INPUT_TYPES)] = "string"
    description: Text = ""
    required: Flag = True
    enum: Annotated[tuple[JsonValue, ...], BeforeValidator(_read_choices)] = ()


class InteractionOutcomes(FileModel):
    """How a skill may answer besides finishing."""

    allowed_intermediate_states: Annotated[tuple[IntermediateState, ...], some_of(*INTERMEDIATE_STATES)] = ()
    max_turns: Annotated[int, within(1, MAX_TURNS, whole=True)] = DEFAULT_TURNS
    supports_resume: Flag = True
    input_request_schema: Annotated[tuple[InputField, ...], _read_each("name")] = ()


class SideEffects(FileModel):
    """The effects of a skill besides its answer."""

    kinds: _Kinds = ()
    repeat: Annotated[Effect, one_of(*REPEATS)] = "opaque"
    """What happens when a turn is repeated after a crash; counts only where there is an effect."""
    paths: _Paths = ()
    """Where it may write, as patterns below the workspace; empty is everywhere in it."""


class FailureMode(FileModel):
    """A way to fail that callers may count on."""

    code: Text
    description: Text = ""
    retryable: Flag = False


def _default_persistence(data: dict[str, Any]) -> StatePersistence:
    return "facts_only" if data["interaction"].allowed_intermediate_states else "none"


class ContractFields(FileModel):
    """The fields of a contract as the front matter has them."""

    model_config = ConfigDict(populate_by_name=True)

    interaction: Annotated[InteractionOutcomes, BeforeValidator(_read_section)] = Field(
        default=InteractionOutcomes(), alias="interaction_outcomes"
    )
    state_persistence: Annotated[StatePersistence, one_of(*PERSISTENCE_LEVELS)] = Field(
        default_factory=_default_persistence
    )
    input_request_jsonschema: _Schema = None
    input_schema: _Schema = None
    output_schema: _Schema = None
    execution_mode: Annotated[ExecutionMode, one_of(*EXECUTION_MODES)] = "deterministic"
    autonomy_level: Annotated[AutonomyLevel, one_of(*AUTONOMY_LEVELS)] = "read"
    side_effects: Annotated[SideEffects, BeforeValidator(_read_effects)] = SideEffects()
    timeout_seconds: Annotated[float, within(1, MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    max_fix_iterations: Annotated[int, within(0, MAX_FIX_ITERATIONS, whole=True)] = MAX_FIX_ITERATIONS
    required_artifacts: _Paths = ()
    failure_modes: Annotated[tuple[FailureMode, ...], _read_each("code")] = ()
    depends_on: Annotated[Texts, AfterValidator(lambda names: tuple(map(canonical_name, names)))] = ()
    sync_celery: Annotated[Flag, BeforeValidator(_read_sync)] = True
    """It promises to be safe inside one synchronous task; then it must pass `check-sync` before it runs."""


class SkillContract(ContractFields):
    skill: str

    @property
    def effect(self) -> Effect:
        """What repeating a call means to the engine."""
        return self.side_effects.repeat if self.side_effects.kinds else "read"

    @property
    def risk(self) -> Risk:
        if not self.side_effects.kinds:
            return "low"
        return "high" if self.autonomy_level == "commit" or "runs_programs" in self.side_effects.kinds else "medium"

    def allows(self, state: str) -> bool:
        return state in self.interaction.allowed_intermediate_states

    def find_failure(self, code: str) -> FailureMode | None:
        return next((mode for mode in self.failure_modes if mode.code == code), None)


def is_above(level: AutonomyLevel, ceiling: AutonomyLevel) -> bool:
    """More authority than the ceiling gives."""
    return AUTONOMY_LEVELS.index(level) > AUTONOMY_LEVELS.index(ceiling)
