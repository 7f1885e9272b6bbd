"""A skill's contract with its callers: the model of its front matter fields, including the JSON Schemas in them."""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, TypeAdapter, ValidationInfo
from pydantic_core import PydanticUseDefault

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
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence, flat_texts, list_texts
from metier.tools.effects import Effect, Risk

if TYPE_CHECKING:
    from referencing.jsonschema import SchemaRegistry

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

_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, JsonValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_DIGITS = 300
_REFERENCES = ("$ref", "$dynamicRef")
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _read_each(alone: str) -> BeforeValidator:
    """Read a list of mappings with unique `alone` keys. A plain word is short for a mapping with only that key."""

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
        message = f"is not a usable JSON Schema: {fault.why}"
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
            context_of(info).deviate(value, "contract_path", f"has the path {text!r}, which leaves the folder")
        else:
            found.append(str(path))
    return tuple(found)


def _read_effects(value: object, info: ValidationInfo) -> object:
    """Read a list of kinds, or a mapping that can also have `repeat` and `paths`."""
    if not isinstance(value, Scalar | Sequence):
        return value
    context = context_of(info)
    before = len(context.findings)
    reading = TypeAdapter(_Kinds).validate_python(value, context=context)
    # A word that a lenient reader does not know may mean any effect that the autonomy level allows.
    return SideEffects(kinds=reading if len(context.findings) == before else SIDE_EFFECTS)


def _read_sync(value: object, info: ValidationInfo) -> object:
    """Read `true` or `{compatible: true}`."""
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
    """States that a skill may return besides its final one."""

    allowed_intermediate_states: Annotated[tuple[IntermediateState, ...], some_of(*INTERMEDIATE_STATES)] = ()
    max_turns: Annotated[int, within(1, MAX_TURNS, whole=True)] = DEFAULT_TURNS
    supports_resume: Flag = True
    input_request_schema: Annotated[tuple[InputField, ...], _read_each("name")] = ()


class SideEffects(FileModel):
    """A skill's effects, other than its answer."""

    kinds: _Kinds = ()
    # The safe default: after a crash, an effect of unknown kind is never repeated.
    repeat: Annotated[Effect, one_of(*REPEATS)] = "opaque"
    """Effect class: decides if a turn may be repeated after a crash. Ignored for a skill without effects."""
    paths: _Paths = ()
    """Patterns of workspace paths it may write to; empty means the whole workspace."""


class FailureMode(FileModel):
    """A documented failure."""

    code: Text
    description: Text = ""
    retryable: Flag = False


def _default_persistence(data: dict[str, Any]) -> StatePersistence:
    return "facts_only" if data["interaction"].allowed_intermediate_states else "none"


class ContractFields(FileModel):
    """Contract fields of the front matter."""

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
    """Declared safe for synchronous tasks: the code must pass `check-sync` before each turn."""


class SkillContract(ContractFields):
    skill: str

    @property
    def effect(self) -> Effect:
        """Effect class of a call, for the engine."""
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
    """Return True if a level has more authority than the ceiling."""
    return AUTONOMY_LEVELS.index(level) > AUTONOMY_LEVELS.index(ceiling)


def json_value(node: Node) -> JsonValue:
    """Return the value with its YAML 1.2 type: an unquoted `true`, `3` or `null` is typed, a quoted one is text."""
    match node:
        case Scalar(value=value, is_plain=True):
            return _typed(value)
        case Scalar(value=value):
            return value
        case Sequence(items=items):
            return [json_value(item) for item in items]
        case Mapping(entries=entries):
            return {entry.key: json_value(entry.value) for entry in entries}


class SchemaFault(NamedTuple):
    """The reason why a node is not a usable JSON Schema, with its line."""

    why: str
    line: int


def find_schema_fault(node: Node) -> SchemaFault | None:
    """Return the first problem of a JSON Schema in front matter."""
    if not isinstance(node, Mapping):
        return SchemaFault("it must be a mapping", node.line)
    for key, value, line in _walk(node):
        # Following a reference to an address would let a skill's file start requests.
        if key in _REFERENCES and not value.startswith("#"):
            return SchemaFault(
                f"{key} {value!r} leads outside the schema; only references inside it are followed", line
            )
        if key == "$schema" and value.rstrip("#") != _DRAFT:
            return SchemaFault(f"$schema {value!r} is not supported; write {_DRAFT!r} or leave it out", line)
    schema = {entry.key: json_value(entry.value) for entry in node.entries}
    # Loaded only for a skill that has a schema.
    from metier.tools.schema_validator import find_schema_fault as find_fault

    if fault := find_fault(schema):
        return SchemaFault(f"{fault.message[:200]} (at {_render_path(fault.path)})", _get_line(node, list(fault.path)))
    return _find_unresolved_reference(node, schema)


def _find_unresolved_reference(node: Node, schema: dict[str, JsonValue]) -> SchemaFault | None:
    """Return a reference to a missing part of the schema. Callers, who only give inputs, could not fix it."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    empty: SchemaRegistry = Registry()
    resolver = empty.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for key, value, line in _walk(node):
        if key != "$ref":
            continue
        try:
            resolver.lookup(value)
        except Unresolvable:
            return SchemaFault(f"$ref {value!r} does not resolve", line)
    return None


def _typed(text: str) -> JsonValue:
    if text in _WORDS:
        return _WORDS[text]
    # Python refuses to parse integers of thousands of digits; such a value stays text.
    if len(text) > _MAX_DIGITS:
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else text


def _walk(node: Node) -> Iterator[tuple[str, str, int]]:
    match node:
        case Mapping(entries=entries):
            for entry in entries:
                if isinstance(entry.value, Scalar):
                    yield entry.key, entry.value.value, entry.line
                yield from _walk(entry.value)
        case Sequence(items=items):
            for item in items:
                yield from _walk(item)
        case Scalar():
            return


def _render_path(path: Iterable[str | int]) -> str:
    """Format a path like `jsonschema` does."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _get_line(node: Node, path: list[str | int]) -> int:
    """Return the line of the deepest part of a path that exists."""
    line = node.line
    for step in path:
        if isinstance(node, Mapping) and (entry := node.find(str(step))):
            node, line = entry.value, entry.line
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            line = node.line
        else:
            break
    return line
