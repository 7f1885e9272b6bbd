"""A run as a task of A2A, in the JSON of the protocol: what the door answers and what receivers are told. Pure."""

from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.engine.entries import InputAsked
from metier.engine.run_state import RunState
from metier.store.base import RunRow

RESULT = "result"
TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELED", "REJECTED"})
INTERRUPTED = frozenset({"INPUT_REQUIRED", "AUTH_REQUIRED"})
RESTING = TERMINAL | INTERRUPTED
"""States in which nothing happens until the caller or a person does something."""
PREFIX = "TASK_STATE_"
_STATES = {
    "pending": "SUBMITTED",
    "completed": "COMPLETED",
    "canceled": "CANCELED",
    "failed": "FAILED",
    "timeout": "FAILED",
    "escalated": "FAILED",
    "blocked": "FAILED",
}
_FOR_A_PERSON = frozenset({"approval", "in_doubt", "step_failed", "changed_code", "explicit"})
"""Pauses that only a person at the workspace ends. The caller is a program, perhaps a model: it may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands, as far as its caller may know."""

    status: str
    at: datetime
    waiting_run_id: str
    """The run that is really waited for: this one, or one that it delegated to."""
    waiting_seq: int
    pause: str = ""
    """What that one waits for."""
    question: InputAsked | None = None
    approval_id: str = ""
    failure: str = ""
    result: str = ""

    @property
    def state(self) -> str:
        """The word of the protocol, without its prefix."""
        if self.status in _STATES:
            return _STATES[self.status]
        if self.pause == "input":
            return "INPUT_REQUIRED"
        return "AUTH_REQUIRED" if self.pause in _FOR_A_PERSON else "WORKING"


def find_standing(state: RunState, waiting: RunState, *, at: datetime) -> Standing:
    failure = state.failure
    return Standing(
        status=state.status,
        at=at,
        waiting_run_id=waiting.run_id,
        waiting_seq=waiting.seq,
        pause=waiting.pause.pause if waiting.pause else "",
        question=waiting.question,
        approval_id=find_open_approval(waiting),
        failure=f"{failure.message} ({failure.reason})" if failure is not None else state.status,
        result=state.result,
    )


def find_open_approval(state: RunState) -> str:
    return next((step.approval_id for step in state.steps if step.phase == "asking"), "")


def build_task(row: RunRow, standing: Standing, *, base_url: str, clean: Callable[[str], str]) -> dict[str, JsonValue]:
    """`base_url` is where the caller reaches the server; a person who must decide goes there too."""
    context = read_context(row.context_id)
    owner: dict[str, JsonValue] = {"taskId": row.run_id, "contextId": context}
    status: dict[str, JsonValue] = {
        "state": f"{PREFIX}{standing.state}",
        "timestamp": standing.at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    if parts := _describe(standing, base_url, clean=clean):
        message_id = f"{row.run_id}-{standing.waiting_seq}"
        status["message"] = {"messageId": message_id, **owner, "role": "ROLE_AGENT", "parts": parts}
    asked: dict[str, JsonValue] = {"messageId": f"{row.run_id}-0", **owner, "role": "ROLE_USER"}
    task: dict[str, JsonValue] = {
        "id": row.run_id,
        "contextId": context,
        "status": status,
        "history": [{**asked, "parts": [{"text": row.task}]}],
    }
    if standing.status == "completed":
        result: dict[str, JsonValue] = {"text": clean(standing.result)}
        task["artifacts"] = [{"artifactId": RESULT, "name": RESULT, "parts": [result]}]
    return task


def read_context(name: str) -> str:
    """The name that a caller knows its conversation by: what stands behind the name of the caller."""
    return name.partition("/")[2]


def _describe(standing: Standing, base_url: str, *, clean: Callable[[str], str]) -> list[JsonValue]:
    """What the caller is told: a question with its fields, where a person decides, or why it failed."""
    question = standing.question
    match standing.state:
        case "INPUT_REQUIRED" if question is not None:
            parts: list[JsonValue] = [{"text": clean(question.question)}]
            if question.fields is not None:
                parts.append({"data": {"fields": question.fields}})
            return parts
        case "AUTH_REQUIRED":
            return [{"text": clean(_name_decider(standing, base_url))}]
        case "FAILED":
            return [{"text": clean(standing.failure)}]
        case _:
            return []


def _name_decider(standing: Standing, base_url: str) -> str:
    """The exact call stays at the workspace: the approver sees it there."""
    where = f"{base_url}/" if base_url else "the inbox of the server"
    asking = standing.approval_id
    command = f"agent approvals approve {asking}" if asking else f"agent resume {standing.waiting_run_id}"
    return f"A person must decide before this goes on, at {where} or with `{command}`. This door cannot decide it."
