"""The protocol between a callable skill and its caller: states, requests, responses. Pure values."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from msgspec import convert
from pydantic import Field, JsonValue, PlainSerializer, PlainValidator, model_validator

from metier.capabilities.contract import InputField, InputType, Schema
from metier.decisions import CalledRun
from metier.errors import UsageError
from metier.values import Value, dump_fields


# An enum for Python programs. In the rest of Metier, states are the strings of `decisions.TaskState`.
class TaskState(StrEnum):
    """State of a conversation with a skill; same values as `metier.decisions.TaskState`."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    BLOCKED = "blocked"
    ESCALATED = "escalated"
    INPUT_REQUIRED = "input_required"
    DELEGATING = "delegating"
    PAUSED = "paused"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def is_resumable(self) -> bool:
        return self in RESUMABLE


TERMINAL = frozenset(
    {
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.TIMEOUT,
        TaskState.BLOCKED,
        TaskState.ESCALATED,
        TaskState.CANCELED,
    }
)
RESUMABLE = frozenset({TaskState.INPUT_REQUIRED, TaskState.DELEGATING, TaskState.PAUSED})


class ExecutionStatus(StrEnum):
    """Outcome of a skill that is called once, as a tool: an older, smaller set of states."""

    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"
    BLOCKED = "blocked"
    ESCALATED = "escalated"


_STATUS_OF_STATE: dict[TaskState, ExecutionStatus] = {
    TaskState.COMPLETED: ExecutionStatus.SUCCESS,
    TaskState.FAILED: ExecutionStatus.FAILED,
    TaskState.TIMEOUT: ExecutionStatus.TIMEOUT,
    TaskState.BLOCKED: ExecutionStatus.BLOCKED,
    TaskState.ESCALATED: ExecutionStatus.ESCALATED,
    TaskState.CANCELED: ExecutionStatus.FAILED,
}
# Reversed, so that `failed` leads back to FAILED and not to CANCELED.
_STATE_OF_STATUS: dict[str, TaskState] = {status.value: state for state, status in reversed(_STATUS_OF_STATE.items())}


def execution_status_to_task_state(status: ExecutionStatus | str) -> TaskState:
    """Map a status to a state. Raises `UsageError` for an unknown status."""
    found = _STATE_OF_STATUS.get(str(status))
    if found is None:
        raise UsageError(f"Unknown execution status {str(status)!r}", hint=f"Known: {', '.join(ExecutionStatus)}")
    return found


def task_state_to_execution_status_value(state: TaskState | str) -> str:
    """Map a state to an execution status: every state that is not terminal is `blocked`.

    Raises `UsageError` for an unknown state.
    """
    if state not in TaskState:
        raise UsageError(f"Unknown task state {str(state)!r}", hint=f"Known: {', '.join(TaskState)}")
    return _STATUS_OF_STATE.get(TaskState(state), ExecutionStatus.BLOCKED).value


class MessageType(StrEnum):
    """Type of a conversation event; see `ContextEvent.event_type`."""

    REQUEST = "request"
    INPUT_REQUEST = "input_request"
    INPUT_RESPONSE = "input_response"
    DELEGATE = "delegate"
    DELEGATE_RESULT = "delegate_result"
    ADVICE = "advice"
    RESPONSE = "response"
    ERROR = "error"


class MissingField(Value):
    """An input that the skill needs."""

    name: str = Field(min_length=1, max_length=100)
    type: InputType = "string"
    description: str = ""
    required: bool = True
    enum: tuple[JsonValue, ...] = ()
    json_schema: Schema | None = None
    """The full schema of the value, if more than its type is known."""

    @classmethod
    def from_contract(cls, field: InputField) -> Self:
        return cls(**dict(field))

    @property
    def schema_of_value(self) -> Schema:
        schema: Schema = dict(self.json_schema) if self.json_schema is not None else {"type": self.type}
        if self.description:
            schema.setdefault("description", self.description)
        if self.enum:
            schema.setdefault("enum", list(self.enum))
        return schema


class InputRequest(Value):
    """A skill's question to its caller."""

    message: str = ""
    missing_fields: tuple[MissingField, ...] = ()
    errors: tuple[str, ...] = ()
    """Problems of the last answer, each with its location."""

    def build_form(self) -> Schema:
        """Return a JSON Schema of the answer, for a page, a terminal or a model to fill in."""
        properties: Schema = {field.name: field.schema_of_value for field in self.missing_fields}
        required: list[JsonValue] = [field.name for field in self.missing_fields if field.required]
        return {"type": "object", "properties": properties, "required": required}

    def render(self) -> str:
        """Return the question as one sentence."""
        wanted = "; ".join(
            f"{field.name} ({field.description})" if field.description else field.name for field in self.missing_fields
        )
        text = f"{self.message or 'Needed'}: {wanted}" if wanted else self.message or "More input is needed"
        return f"{text} ({'; '.join(self.errors)})" if self.errors else text


class Delegation(Value):
    """A call of another skill."""

    skill: str = Field(min_length=1)
    inputs: dict[str, JsonValue] = Field(default_factory=dict)
    reason: str = ""


class ResponseError(Value):
    code: str
    message: str
    retryable: bool = False


# A value of the engine inside a public one: msgspec checks and writes it, as it does in the journal.
type _CalledRun = Annotated[
    CalledRun, PlainValidator(lambda value: convert(value, CalledRun)), PlainSerializer(dump_fields)
]


class ResponseMetadata(Value):
    """Facts about a response that do not depend on its state."""

    context_id: str = ""
    skill: str = ""
    turn: int = 1
    max_turns: int = 1
    version: int = 0
    """Version of the conversation's state; 0 if nothing was stored."""
    resume_token: str = ""
    """Continues the conversation once; empty if the response is final."""
    agent_state_detail: str = ""
    """Reason code of the state: `missing_input`, `max_turns`, `undeclared_effect`, …"""
    execution_status: str = ""
    """The state as an `ExecutionStatus`."""
    duration_ms: float = 0
    fix_iterations: int = 0
    advice_calls: int = 0
    report: tuple[str, ...] = ()
    """Attempts of an escalated turn, each with its problem."""
    handed_on: _CalledRun | None = None
    """The run of the other skill, while this one waits for it."""
    replayed: bool = False
    """True if this is the stored answer to a repeated message."""


class AgentResponse(Value):
    """The result of one turn of a skill."""

    state: TaskState = TaskState.COMPLETED
    outputs: dict[str, JsonValue] = Field(default_factory=dict)
    errors: tuple[ResponseError, ...] = ()
    input_request: InputRequest | None = None
    delegation: Delegation | None = None
    artifacts: tuple[str, ...] = ()
    """Paths of the files it created."""
    metadata: ResponseMetadata = ResponseMetadata()

    @property
    def message(self) -> str:
        """The question, the first error or the summary, for a user."""
        if self.input_request is not None and self.state.is_resumable:
            return self.input_request.render()
        if self.errors:
            return self.errors[0].message
        summary = self.outputs.get("summary")
        return summary if isinstance(summary, str) else f"The skill is {self.state}"


class SkillAnswer(Value):
    """Return value of `execute`. A mapping without `state` and `outputs` is the outputs."""

    state: Literal["completed", "failed", "input_required", "delegating", "paused", "escalated"] = "completed"
    outputs: dict[str, JsonValue] = Field(default_factory=dict)
    errors: tuple[ResponseError, ...] = ()
    input_request: InputRequest | None = None
    delegation: Delegation | None = None
    artifacts: dict[str, str] = Field(default_factory=dict)
    """File name → text, for Metier to write to the artifacts of the run."""
    written: tuple[str, ...] = ()
    """Files that the skill itself wrote to `context.artifacts`: `artifacts` given as a list of paths."""

    @model_validator(mode="before")
    @classmethod
    def _split_artifacts(cls, value: JsonValue) -> JsonValue:
        # Authors give either the texts or the paths under one name. Split, so that each field has one type.
        if not isinstance(value, dict) or not isinstance(value.get("artifacts"), list):
            return value
        return {**value, "artifacts": {}, "written": value["artifacts"]}

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.state == "input_required" and (self.input_request is None or not self.input_request.missing_fields):
            raise ValueError("input_required needs an input_request with missing_fields")
        if self.state == "delegating" and self.delegation is None:
            raise ValueError("delegating needs a delegation")
        if self.state == "failed" and not self.errors:
            raise ValueError("failed needs errors")
        return self


def parse_answer(value: JsonValue) -> SkillAnswer:
    """Raise pydantic's `ValidationError` for an invalid answer."""
    if isinstance(value, dict) and not (value.keys() & {"state", "outputs"}):
        value = {"outputs": value}
    return SkillAnswer.model_validate(value)
