"""Bodies of requests and responses: documents without secrets, pages of them, downloads, and their schemas.

Routes send documents that other modules build, the same as on the command line, so nothing is validated here. The tests
check every response of a server against the schemas.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from fastapi import Query
from msgspec.json import schema_components
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.responses import JSONResponse, Response

from metier.decisions import TaskState
from metier.definitions.names import Profile
from metier.events.record import RedactionMode
from metier.events.task import TaskStepState
from metier.runtime.queue.scheduler import Origin
from metier.runtime.status import WaitKind
from metier.server.idempotency import Document
from metier.server.state import ServerState
from metier.skills.package import PackageSource
from metier.store.schedules import FiringOutcome
from metier.telemetry.redaction import Json
from metier.values import Value
from metier.views.run_view import RunView
from metier.views.spending import Grouping

# Larger numbers would exceed the 64-bit integers of the stores.
type Cursor = Annotated[int, Query(ge=0, le=2**62, description="`next` of the previous page.")]
type PageSize = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]

# `sandbox` gives content that a browser renders anyway an origin of its own, so it cannot use the session.
_DOWNLOAD_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"


class Body(Value):
    """A request body. Built when its class is defined, because FastAPI reads the schema at once."""

    model_config = ConfigDict(defer_build=False)


class Download(Response):
    """A file. Its headers keep browsers from rendering it, because it can contain hostile HTML."""

    media_type = "application/octet-stream"


DOWNLOAD: dict[str, Any] = {"content": {Download.media_type: {"schema": {"type": "string", "format": "binary"}}}}
"""A response in the OpenAPI document."""


def answer(state: ServerState, document: Document, *, status: int = 200) -> Response:
    """Return the document as JSON, without the host's secrets."""
    clean = state.redactor.redact_value(cast("Json", document))  # JSON values either way
    return JSONResponse(cast("Any", clean), status_code=status)


def answer_page(state: ServerState, items: list[Document], *, following: int = 0) -> Response:
    return answer(state, {"items": cast("JsonValue", items), "next": following})


def answer_file(data: bytes, *, name: str) -> Response:
    # A quote or a line end would end the value of the header.
    plain = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-._") else "_" for mark in name)
    # Both forms of RFC 6266: clients that do not know `filename*` use the plain one.
    return Download(
        data,
        headers={
            "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
            "content-security-policy": _DOWNLOAD_POLICY,
        },
    )


COMPONENTS = "#/components/schemas/"

Object = dict[str, JsonValue]
"""Not a `type` statement, which would be a schema of its own."""


class ResponseBody(BaseModel):
    """A response body. Clients must ignore fields that they don't know: later versions add some."""

    # FastAPI reads the schema at once.
    model_config = ConfigDict(frozen=True, defer_build=False)


class Page[Item](ResponseBody):
    """A page of a list."""

    items: tuple[Item, ...]
    next: Annotated[int, Field(description="The `cursor` of the next page; 0 on the last page.")]


class RunItem(ResponseBody):
    """A run, as lists show it."""

    run_id: str
    status: TaskState
    interrupted: Annotated[bool, Field(description="Its process ended without finishing it, and no queue has it.")]
    worker_lost: Annotated[bool, Field(description="Its worker was lost; another one will continue it.")]
    driver: Annotated[str, Field(description="The process that drives it; empty if there is none.")]
    queue: Annotated[str, Field(description="The queue whose workers continue it; empty if none does.")]
    task: str
    agent: str
    model: str
    parent_run_id: str
    turns: int
    cost_usd: Annotated[float | None, Field(description="None if the cost of a model call is unknown.")]
    tokens: int
    reason: Annotated[str, Field(description="Code of the failure, or kind of the pause.")]
    created_at: datetime
    updated_at: datetime


class ContinuedRun(RunItem):
    goes_on: Annotated[bool, Field(description="False if the answer ended the run.")]


class ForkedRun(RunItem):
    changed: Annotated[tuple[str, ...], Field(description="Differences between the settings of both runs.")]


class CanceledRun(ResponseBody):
    run_id: str
    status: TaskState
    is_over: Annotated[bool, Field(description="False while the process that drives it stops.")]


class OpenApproval(ResponseBody):
    """An approval that a run waits for."""

    approval_id: str
    tool: str
    arguments: Object
    hash: Annotated[str, Field(description="Send it to approve this call.")]
    reason: str
    justification: str
    preview: str
    expires_at: Annotated[str, Field(description="Empty if it does not expire.")]


class Question(ResponseBody):
    question: str
    fields: Annotated[JsonValue, Field(description="JSON Schema of the answer's `values`; None for any text.")]


class SkillCall(ResponseBody):
    skill: str
    chain: Annotated[tuple[str, ...], Field(description="The skills that called each other, first one first.")]


class TaskStepItem(ResponseBody):
    step_id: str
    file: str
    name: str
    state: TaskStepState
    message: Annotated[str, Field(description="Why it failed or was skipped.")]


class ChildRun(ResponseBody):
    run_id: str
    step_id: str
    agent: str
    task: str
    skill: Annotated[str, Field(description="The skill, if the run only calls its code.")]
    status: Annotated[str, Field(description="A status of a run, or `open` before its status is known.")]


class TokenCount(ResponseBody):
    input_tokens: int
    output_tokens: int


class RunPaths(ResponseBody):
    """Files on the machine of the server."""

    folder: str
    events: str
    record: str
    artifacts: str


class RunDetails(RunItem):
    """A run with its outcome and its pending question."""

    exit_code: Annotated[int, Field(description="Exit code of `agent run` for this outcome.")]
    result: str
    message: Annotated[str, Field(description="Description of the failure or the pause.")]
    cause: Annotated[str, Field(description="Last lines of the output of a failed program.")]
    waits_for: Annotated[str, Field(description="ID of the waiting run, this one or a descendant.")]
    approvals: tuple[OpenApproval, ...]
    next: Annotated[tuple[str, ...], Field(description="Commands that continue the run, or advice about a failure.")]
    usage: TokenCount
    paths: RunPaths
    question: Question | None
    resume_token: Annotated[str, Field(description="`token` of `resume` and `answer`; empty if the run is not paused.")]
    plan: Annotated[Object | None, Field(description="The plan of a dry run that has ended.")] = None
    inputs: Annotated[Object | None, Field(description="The inputs of a task.")] = None
    call: Annotated[SkillCall | None, Field(description="The call of a run that only calls a skill's code.")] = None
    task_steps: tuple[TaskStepItem, ...] | None = None
    children: tuple[ChildRun, ...] | None = None


class EntryItem(ResponseBody):
    """An entry of the journal."""

    seq: int
    kind: str
    data: Annotated[Object, Field(description="The fields of its kind that differ from their defaults.")]


class ArtifactItem(ResponseBody):
    name: str
    bytes: int


class EventItem(ResponseBody):
    id: Annotated[str, Field(description="Pass it as `after` or `Last-Event-ID` to continue behind this event.")]
    record: "EventBody"


class EventBody(ResponseBody):
    """A line of the event log."""

    run_id: str
    trace_id: str
    span_id: str
    parent_span_id: str
    timestamp: datetime
    seq: int
    event_type: str
    payload: Annotated[Object, Field(description="The fields of its event type.")]
    redaction_mode: RedactionMode
    schema_version: int
    entry: Annotated[int, Field(description="Number of its journal entry; 0 for informational events.")]
    turn: int
    skill: str


class ApprovalItem(ResponseBody):
    """A call that needs an approval, and its decision."""

    approval_id: str
    run_id: str
    step_id: str
    status: Literal["open", "approved", "denied", "expired"]
    tool: str
    arguments: Object
    hash: Annotated[str, Field(description="Send it to approve this call.")]
    edited_call: Annotated[str | None, Field(description="The call that was approved instead, as JSON.")]
    edited_arguments: Object | None
    difference: Annotated[tuple[str, ...], Field(description="The edit, as lines of a unified diff.")]
    risk: str
    reason: Annotated[str, Field(description="Why the call needs an approval.")]
    justification: Annotated[str, Field(description="The model's reason for the call.")]
    preview: Annotated[str, Field(description="Expected changes.")]
    created_at: datetime
    expires_at: datetime | None
    decided_by: str
    decision_reason: str


class DecisionAttempt(ResponseBody):
    status: Literal["approved", "denied", "expired"]
    decided_by: str
    reason: str
    at: datetime
    counted: Annotated[bool, Field(description="True for the first decision.")]


class ApprovalDetails(ApprovalItem):
    attempts: tuple[DecisionAttempt, ...]


class TaskInputItem(ResponseBody):
    name: str
    description: str
    default: Annotated[str | None, Field(description="None if the caller must provide a value.")]


class TaskDefinitionStep(ResponseBody):
    """A Markdown file of a task. `tools`, `skills` and `tasks` are None if the step has the agent's."""

    file: str
    name: str
    agent: str | None
    tools: tuple[str, ...] | None
    skills: tuple[str, ...] | None
    tasks: tuple[str, ...] | None
    output_schema: Object | None
    acceptance: tuple[str, ...]


class TaskDetails(ResponseBody):
    id: str
    name: str
    description: str
    inputs: tuple[TaskInputItem, ...]
    steps: tuple[TaskDefinitionStep, ...]
    input_schema: Annotated[Object, Field(description="JSON Schema of `inputs` of a run.")]


class LoadedTask(TaskDetails):
    loaded: Literal[True]
    problems: tuple[str, ...]


class InvalidTask(ResponseBody):
    """A task definition with errors, which can't be run."""

    id: str
    loaded: Literal[False]
    problems: tuple[str, ...]


type TaskItem = LoadedTask | InvalidTask


class AgentItem(ResponseBody):
    id: str
    loaded: Annotated[bool, Field(description="False if its definition is invalid.")]
    is_default: bool
    name: str
    description: str
    model: str | None
    profile: Profile | None
    problems: tuple[str, ...]


class SkillItem(ResponseBody):
    name: str
    description: str
    version: str | None
    source: PackageSource
    trusted: bool
    active: Annotated[bool, Field(description="Whether new runs have it.")]


class ConversationItem(ResponseBody):
    context_id: str
    status: TaskState
    turns: int
    updated_at: datetime


class OpenedConversation(ResponseBody):
    context_id: str
    agent: str
    model: str
    is_new: bool


class ConversationTurn(ResponseBody):
    run_id: str
    status: TaskState
    said: str
    answer: str
    notes: Annotated[tuple[str, ...], Field(description="Actions and questions during the turn.")]


class OpenTurnItem(ResponseBody):
    run_id: str
    waits_for: Annotated[str, Field(description="ID of the waiting run, this one or a descendant.")]
    kind: WaitKind


class ConversationDetails(ResponseBody):
    context_id: str
    agent: str
    turns: tuple[ConversationTurn, ...]
    open_turn: OpenTurnItem | None


class StartedTurn(ResponseBody):
    context_id: str
    run_id: str
    status: TaskState


class FiringItem(ResponseBody):
    """The outcome of a due time."""

    due_at: datetime
    outcome: FiringOutcome
    run_id: str | None
    status: Annotated[TaskState | None, Field(description="Status of the run, if it is still in the store.")]
    reason: str


class ScheduleItem(ResponseBody):
    """A schedule with its next due times and the outcomes of the last ones."""

    name: str
    cron: str
    every: Annotated[int, Field(description="Interval in seconds; 0 if `cron` is set.")]
    timezone: str
    prompt: str
    task: str
    inputs: dict[str, str]
    agent: str
    profile: Literal["", "permissive", "guarded", "strict"]
    overlap: Literal["skip", "queue", "cancel"]
    missed: Literal["skip", "once"]
    jitter: int
    origin: Origin
    paused: bool
    withheld: Annotated[str | None, Field(description="Why it doesn't start runs although it is not paused.")]
    next: tuple[datetime, ...]
    firings: tuple[FiringItem, ...]


class StartedSchedule(ResponseBody):
    schedule: str
    run_id: str


class CostItem(ResponseBody):
    name: str
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_usd: Annotated[float | None, Field(description="None if the cost of a call is unknown.")]
    known_cost_usd: float
    calls_of_unknown_cost: int


class Cost(ResponseBody):
    by: Grouping
    totals: tuple[CostItem, ...]
    runs: int
    completed: int
    missing: Annotated[int, Field(description="Ended and waiting runs that are not counted yet.")]


RUN_VIEW: dict[str, Any] = {"content": {"application/json": {"schema": {"$ref": f"{COMPONENTS}{RunView.__name__}"}}}}
"""A response. `build_view_schemas` has the schema."""


def build_view_schemas() -> dict[str, Any]:
    """Build the schemas of `RunView` and its parts, by name."""
    _, components = schema_components((RunView,), ref_template=f"{COMPONENTS}{{name}}")
    for schema in components.values():
        schema["required"] = list(schema["properties"])  # defaults are sent too
        for field in schema["properties"].values():
            field.pop("default", None)
    # Generators of clients don't know `items: false`, and the length is limited anyway.
    del components["ContextUse"]["properties"]["layers"]["items"]["items"]
    return components
