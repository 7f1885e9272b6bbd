"""Runs as A2A tasks: state, question, result, history. A projection; it reads nothing and changes nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from a2a.types.a2a_pb2 import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import JsonValue

from metier.doors.a2a.identity import Caller
from metier.engine.state import RunState
from metier.store.base import RunRow

TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
RESTING = TERMINAL | INTERRUPTED
"""States in which nothing happens until the caller or a person does something."""
RESULT = "result"
_STATES = {
    "pending": TaskState.TASK_STATE_SUBMITTED,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "canceled": TaskState.TASK_STATE_CANCELED,
    "failed": TaskState.TASK_STATE_FAILED,
    "timeout": TaskState.TASK_STATE_FAILED,
    "escalated": TaskState.TASK_STATE_FAILED,
    "blocked": TaskState.TASK_STATE_FAILED,
}
_FOR_A_PERSON = frozenset({"approval", "in_doubt", "step_failed", "changed_code", "explicit"})
"""Pauses that only a person at the workspace ends. The caller is a program, perhaps a model: it may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """What a task is built from."""

    row: RunRow
    state: RunState
    waiting: RunState
    """The run that is really waited for: this one, or one that it delegated to."""


def find_task_state(view: TaskView) -> TaskState:
    pause = view.waiting.pause
    if view.state.status in _STATES:
        return _STATES[view.state.status]
    if pause is not None and pause.pause == "input":
        return TaskState.TASK_STATE_INPUT_REQUIRED
    if pause is not None and pause.pause in _FOR_A_PERSON:
        return TaskState.TASK_STATE_AUTH_REQUIRED
    return TaskState.TASK_STATE_WORKING


def build_task(view: TaskView, caller: Caller, *, clean: Callable[[str], str]) -> Task:
    state, row = view.state, view.row
    context = caller.read_context(row.context_id)
    history = [_message(f"{row.run_id}-0", row, text=row.task, role=Role.ROLE_USER)]
    task = Task(id=row.run_id, context_id=context, status=_build_status(view, caller, clean=clean))
    for message in history:
        message.context_id = context
        task.history.append(message)
    if state.status == "completed":
        task.artifacts.append(Artifact(artifact_id=RESULT, name=RESULT, parts=[Part(text=clean(state.result))]))
    return task


def _build_status(view: TaskView, caller: Caller, *, clean: Callable[[str], str]) -> TaskStatus:
    found = find_task_state(view)
    at = Timestamp()
    at.FromDatetime(view.row.updated_at)
    status = TaskStatus(state=found, timestamp=at)
    if parts := _describe(view, found, caller, clean=clean):
        message = _message(f"{view.row.run_id}-{view.waiting.seq}", view.row, role=Role.ROLE_AGENT)
        message.context_id = caller.read_context(view.row.context_id)
        message.parts.extend(parts)
        status.message.CopyFrom(message)
    return status


def _describe(view: TaskView, found: TaskState, caller: Caller, *, clean: Callable[[str], str]) -> Sequence[Part]:
    """What the caller is told: a question with its fields, where a person decides, or why it failed."""
    question, failure, pause = view.waiting.question, view.state.failure, view.waiting.pause
    if found == TaskState.TASK_STATE_INPUT_REQUIRED and question is not None:
        parts = [Part(text=clean(question.question))]
        if question.fields is not None:
            parts.append(Part(data=build_value({"fields": question.fields})))
        return parts
    if found == TaskState.TASK_STATE_AUTH_REQUIRED and pause is not None:
        return [Part(text=clean(_name_decider(view, caller)))]
    if found == TaskState.TASK_STATE_FAILED:
        said = f"{failure.message} ({failure.reason})" if failure is not None else view.state.status
        return [Part(text=clean(said))]
    return ()


def _name_decider(view: TaskView, caller: Caller) -> str:
    """The exact call stays at the workspace: the approver sees it there."""
    waiting = view.waiting
    where = f"{caller.base_url}/" if caller.base_url else "the inbox of the server"
    asking = next((step.approval_id for step in waiting.steps if step.phase == "asking"), "")
    command = f"agent approvals approve {asking}" if asking else f"agent resume {waiting.run_id}"
    return f"A person must decide before this goes on, at {where} or with `{command}`. This door cannot decide it."


def _message(message_id: str, row: RunRow, *, role: Role, text: str = "") -> Message:
    message = Message(message_id=message_id, task_id=row.run_id, role=role)
    if text:
        message.parts.append(Part(text=text))
    return message


def build_value(value: dict[str, JsonValue]) -> Value:
    return ParseDict(value, Value())
