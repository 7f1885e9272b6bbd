"""The contract of a skill with its callers, as values; `contract_reader` reads it from front matter."""

from typing import Literal

from msgspec import Struct, field
from pydantic import JsonValue

from metier.decisions import AutonomyLevel
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


class InputField(Struct, frozen=True, kw_only=True):
    """One thing that a skill may ask for."""

    name: str
    type: InputType = "string"
    description: str = ""
    required: bool = True
    enum: tuple[JsonValue, ...] = ()


class InteractionOutcomes(Struct, frozen=True, kw_only=True):
    """How a skill may answer besides finishing."""

    allowed_intermediate_states: tuple[IntermediateState, ...] = ()
    max_turns: int = DEFAULT_TURNS
    supports_resume: bool = True
    input_request_schema: tuple[InputField, ...] = ()


class SideEffects(Struct, frozen=True, kw_only=True):
    """What it does to the world beside answering."""

    kinds: tuple[SideEffect, ...] = ()
    repeat: Effect = "opaque"
    """What happens when a turn is repeated after a crash; counts only where there is an effect."""
    paths: tuple[str, ...] = ()
    """Where it may write, as patterns below the workspace; empty is everywhere in it."""


class FailureMode(Struct, frozen=True, kw_only=True):
    """A way to fail that callers may count on."""

    code: str
    description: str = ""
    retryable: bool = False


class SkillContract(Struct, frozen=True, kw_only=True):
    skill: str
    interaction: InteractionOutcomes = field(default_factory=InteractionOutcomes)
    state_persistence: StatePersistence = "none"
    input_request_jsonschema: Schema | None = None
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    execution_mode: ExecutionMode = "deterministic"
    autonomy_level: AutonomyLevel = "read"
    side_effects: SideEffects = field(default_factory=SideEffects)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_fix_iterations: int = MAX_FIX_ITERATIONS
    required_artifacts: tuple[str, ...] = ()
    failure_modes: tuple[FailureMode, ...] = ()
    depends_on: tuple[str, ...] = ()
    sync_celery: bool = True
    """It promises to be safe inside one synchronous task; then it must pass `check-sync` before it runs."""

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
