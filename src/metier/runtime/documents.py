"""Approvals and tasks as JSON, the same on the command line and over HTTP. Pure."""

import difflib
import json
from typing import Any

from msgspec import convert
from pydantic import JsonValue

from metier.definitions.task import TaskDefinition, render_criterion
from metier.engine.delegation import read_inputs, read_output_schema
from metier.engine.entries.question import ApprovalAsked
from metier.engine.execution.approval_requests import CallSnapshot, render_call
from metier.runtime.approval_questions import ApprovalQuestion
from metier.store.base import ApprovalAttempt, ApprovalRow


def approval_as_json(question: ApprovalQuestion) -> dict[str, JsonValue]:
    row, asked = question.row, question.asked
    edited = None if row.edited_payload is None else row.edited_payload.decode()
    return {
        "approval_id": row.approval_id,
        "run_id": row.run_id,
        "step_id": row.step_id,
        "status": row.status,
        "tool": question.tool,
        "arguments": question.arguments,
        "hash": question.hash,
        "edited_call": edited,
        "edited_arguments": question.edited_arguments,
        "difference": list[JsonValue](render_edit(question)),
        "risk": asked.risk if asked else "",
        "reason": asked.reason if asked else "",
        "justification": asked.justification if asked else "",
        "preview": asked.preview if asked else "",
        "created_at": row.created_at.isoformat(),
        "expires_at": row.expires_at.isoformat() if row.expires_at else None,
        "decided_by": row.decided_by,
        "decision_reason": row.reason,
    }


def attempt_as_json(attempt: ApprovalAttempt) -> dict[str, JsonValue]:
    return {
        "status": attempt.status,
        "decided_by": attempt.decided_by,
        "reason": attempt.reason,
        "at": attempt.at.isoformat(),
        "counted": attempt.counted,
    }


def read_approval(item: dict[str, Any]) -> ApprovalQuestion:
    """Read what `approval_as_json` wrote, as a server sends it."""
    edited: str | None = item["edited_call"]
    row = convert(
        {
            **item,
            "payload": render_call(item["tool"], item["arguments"]),
            "reason": item["decision_reason"],
            "edited_payload": None if edited is None else edited.encode(),
        },
        ApprovalRow,
    )
    asked = ApprovalAsked(
        approval_id=row.approval_id,
        step_id=row.step_id,
        arguments_hash=item["hash"],
        reason=item["reason"],
        expires_at=item["expires_at"] or "",
        justification=item["justification"],
        preview=item["preview"],
        risk=item["risk"],
    )
    return ApprovalQuestion(
        row=row, asked=asked, tool=item["tool"], arguments=item["arguments"], refuse=_refuse_nothing, look=_look_nowhere
    )


# For questions read from a server, which checks edited arguments and builds previews itself.
async def _refuse_nothing(_run_id: str, _call: tuple[str, dict[str, JsonValue]]) -> str:
    return ""


async def _look_nowhere(_tool: str, _arguments: dict[str, JsonValue]) -> CallSnapshot:
    return CallSnapshot("", ())


def read_attempt(approval_id: str, item: dict[str, Any]) -> ApprovalAttempt:
    """Read what `attempt_as_json` wrote."""
    return convert({**item, "approval_id": approval_id}, ApprovalAttempt)


def task_as_json(task: TaskDefinition) -> dict[str, Any]:
    return {
        "id": task.id,
        "name": task.name,
        "description": task.description,
        "inputs": [
            {"name": item.name, "description": item.description, "default": item.default} for item in task.inputs
        ],
        "steps": [
            {
                "file": step.file.name,
                "name": step.name,
                "agent": step.agent,
                "tools": None if step.tools is None else list(step.tools),
                "skills": None if step.skills is None else list(step.skills),
                "tasks": None if step.tasks is None else list(step.tasks),
                "output_schema": read_output_schema(step),
                "acceptance": [render_criterion(criterion) for criterion in step.acceptance],
            }
            for step in task.steps
        ],
    }


def render_edit(question: ApprovalQuestion) -> list[str]:
    """Render the difference between the model's call and the edited one, as a unified diff."""
    if question.edited_arguments is None:
        return []
    before, after = (_write_arguments(each) for each in (question.arguments, question.edited_arguments))
    return list(difflib.unified_diff(before, after, "requested by the model", "edited", lineterm=""))


def _write_arguments(arguments: dict[str, JsonValue]) -> list[str]:
    """Render arguments by line, so that a diff shows which line of a text changed."""
    lines: list[str] = []
    for name, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"{name}: {line}" for line in written.splitlines() or [""]]
    return lines


def build_input_schema(task: TaskDefinition) -> dict[str, JsonValue]:
    """Build one JSON Schema of a task's inputs, for forms and other programs."""
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    for item in read_inputs(task):
        schema: dict[str, JsonValue] = dict(item.value_schema or {"type": "string"})
        if item.description:
            schema.setdefault("description", item.description)
        if item.default is None:
            required.append(item.name)
        else:
            schema["default"] = item.default
        properties[item.name] = schema
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
