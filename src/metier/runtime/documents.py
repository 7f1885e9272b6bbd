"""Runs, approvals and tasks as JSON, the same on the command line and over HTTP. Pure."""

import difflib
import json

from pydantic import JsonValue

from metier.definitions.task import TaskDefinition, render_criterion
from metier.engine.delegation.partners import read_inputs
from metier.runtime.questions.approval_questions import ApprovalQuestion
from metier.store.base import ApprovalAttempt


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


def task_as_json(task: TaskDefinition) -> dict[str, JsonValue]:
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
                "acceptance": [render_criterion(criterion) for criterion in step.acceptance],
            }
            for step in task.steps
        ],
    }


def render_edit(question: ApprovalQuestion) -> list[str]:
    """Line by line, the call of the model against the edited one."""
    if question.edited_arguments is None:
        return []
    before, after = (_write_arguments(each) for each in (question.arguments, question.edited_arguments))
    return list(difflib.unified_diff(before, after, "asked for by the model", "edited", lineterm=""))


def _write_arguments(arguments: dict[str, JsonValue]) -> list[str]:
    """Texts of several lines are compared by their lines."""
    lines: list[str] = []
    for name, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"{name}: {line}" for line in written.splitlines() or [""]]
    return lines


def build_input_schema(task: TaskDefinition) -> dict[str, JsonValue]:
    """The inputs of a task as one JSON Schema: what a form or another program is to fill in."""
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
