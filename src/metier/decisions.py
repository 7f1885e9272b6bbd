"""A model's decision (skill, disclosure, next actions) and the results of its steps. Pure values."""

import json
from typing import Literal, get_args

from msgspec import field

from metier.values import JsonValue, StoredValue

type ActionType = Literal["call_skill", "run_command", "call_tool", "ask_user", "delegate", "finish"]


type AutonomyLevel = Literal["read", "suggest", "implement", "commit"]
"""A skill's autonomy, from least to most."""

type StepStatus = Literal["succeeded", "failed", "skipped", "timeout", "denied", "in_doubt"]


SCRIPT_TOOLS = frozenset({"script_list", "script_help", "script_run"})
"""Tools that name their skill in `skill_name`."""


class ActionStep(StoredValue, frozen=True, kw_only=True):
    """One action.

    `params` by type: `call_tool {tool, arguments}`, `run_command {command, …}`, `call_skill {skill, reason, inputs}`
    (with inputs the skill's code is called, without them it takes charge), `ask_user {question, fields}`,
    `delegate {agent, task}`, `finish {result}`.
    """

    type: ActionType
    params: dict[str, JsonValue] = field(default_factory=dict)
    expected_output: str = ""
    call_id: str = ""
    """The model's ID of the call, which the result repeats. Formats differ by vendor."""


def find_invocation(action: ActionStep) -> dict[str, JsonValue] | None:
    """Return the inputs with which an action calls a skill's code; None if it doesn't."""
    inputs = action.params.get("inputs") if action.type == "call_skill" else None
    return inputs if isinstance(inputs, dict) else None


def get_owner(action: ActionStep) -> str:
    """Return the skill whose script, toolset or code an action runs; empty if none."""
    if find_invocation(action) is not None:
        return str(action.params.get("skill", ""))
    tool, arguments = str(action.params.get("tool", "")), action.params.get("arguments")
    if tool in SCRIPT_TOOLS and isinstance(arguments, dict):
        return str(arguments.get("skill_name") or "")
    # `skill.tool` belongs to a toolset, `server/tool` to an MCP server, whose tool names may contain dots.
    return tool.rpartition(".")[0] if "." in tool and "/" not in tool else ""


class SkillCall(StoredValue, frozen=True, kw_only=True):
    """A skill's request to call another skill's code, in a child run."""

    skill: str
    inputs: dict[str, JsonValue] = field(default_factory=dict)
    chain: tuple[str, ...] = ()
    """Skills that wait for it, the first caller first."""
    ceiling: AutonomyLevel = "commit"
    """Maximum autonomy: that of the caller."""


class CalledRun(StoredValue, frozen=True, kw_only=True):
    """The child run for a skill's call. Its ID is fixed, so that a repeated step finds the run."""

    run_id: str
    call: SkillCall


class ModelDecision(StoredValue, frozen=True, kw_only=True):
    """A decoded reply of a model."""

    selected_skill: str | None = None
    reasoning_summary: str = ""
    required_disclosure_paths: tuple[str, ...] = ()
    planned_actions: tuple[ActionStep, ...] = ()


def read_failure(text: str) -> dict[str, JsonValue] | None:
    """Return the fields of a failed result of the form `{"success": false, "error", "message", …}`; None for other
    text.
    """
    if not text.startswith("{"):
        return None
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("success") is False else None


def write_failure(code: str, message: str) -> str:
    """Write a failure that `read_failure` reads."""
    return json.dumps({"success": False, "error": code, "message": message}, ensure_ascii=False)


def answers_in_json(tool: str) -> bool:
    """Return True for scripts, skill tools and MCP tools, whose failures have a code for the model."""
    return tool in ("script_list", "script_help", "script_run") or "." in tool or "/" in tool


def describe_failure(text: str) -> str:
    """Describe a failed result in words: its message if it is JSON, otherwise the text itself."""
    failure = read_failure(text)
    return text if failure is None else str(failure.get("message") or failure.get("error") or text)


def describe_success(text: str) -> str:
    """Describe a script's result in words: its summary, otherwise the result itself; other text unchanged."""
    success = read_success(text)
    return text if success is None else find_summary(success) or text


def read_success(text: str) -> dict[str, JsonValue] | None:
    """Return the fields of a script's result of the form `{"success": true, "result", …}`; None for other text."""
    # All writers of such results put this key first. Other text, which can be long, is not parsed.
    if not text.startswith('{"success": true'):
        return None
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def find_summary(success: dict[str, JsonValue]) -> str | None:
    """Return the summary of a script's result, or a result that is text."""
    result = success.get("result")
    summary = result.get("summary") if isinstance(result, dict) else result
    return summary if isinstance(summary, str) else None


class StepExecutionResult(StoredValue, frozen=True, kw_only=True):
    """The result of one step, in the few words that later turns need."""

    step_id: str
    status: StepStatus
    tool: str = ""
    exit_code: int | None = None
    stdout_summary: str = ""
    stderr_summary: str = ""
    retry_count: int = 0


type TaskState = Literal[
    "pending", "in_progress", "completed", "failed", "timeout", "blocked", "escalated", "input_required", "delegating",
    "paused", "canceled"
]  # fmt: skip
TASK_STATES: tuple[str, ...] = get_args(TaskState.__value__)
