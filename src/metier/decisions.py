"""What a model's reply means (which skill, what to disclose, what to do next), and what came of it. Pure values."""

import json
from typing import Literal, get_args

from msgspec import field

from metier.values import JsonValue, StoredValue

type ActionType = Literal["call_skill", "run_command", "call_tool", "ask_user", "delegate", "finish"]


type AutonomyLevel = Literal["read", "suggest", "implement", "commit"]
"""How much a skill may do, the least first."""

type StepStatus = Literal["succeeded", "failed", "skipped", "timeout", "denied", "in_doubt"]


SCRIPT_TOOLS = frozenset({"script_list", "script_help", "script_run"})
"""Tools that name the skill they are about in `skill_name`."""


class ActionStep(StoredValue, frozen=True, kw_only=True):
    """One thing to do.

    `params` by type: `call_tool {tool, arguments}`, `run_command {command, …}`, `call_skill {skill, reason, inputs}`
    (with inputs the skill's code is called, without them it takes charge), `ask_user {question, fields}`,
    `delegate {agent, task}`, `finish {result}`.
    """

    type: ActionType
    params: dict[str, JsonValue] = field(default_factory=dict)
    expected_output: str = ""
    call_id: str = ""
    """The model's own id of the call, which its result must name; vendors differ in their form."""


def find_invocation(action: ActionStep) -> dict[str, JsonValue] | None:
    """The inputs with which an action calls a skill's code; nothing where it does not."""
    inputs = action.params.get("inputs") if action.type == "call_skill" else None
    return inputs if isinstance(inputs, dict) else None


def get_owner(action: ActionStep) -> str:
    """The skill whose script, toolset or code an action runs; empty where it runs none."""
    if find_invocation(action) is not None:
        return str(action.params.get("skill", ""))
    tool, arguments = str(action.params.get("tool", "")), action.params.get("arguments")
    if tool in SCRIPT_TOOLS and isinstance(arguments, dict):
        return str(arguments.get("skill_name") or "")
    return tool.rpartition(".")[0] if "." in tool and "/" not in tool else ""


class SkillCall(StoredValue, frozen=True, kw_only=True):
    """The code of a skill that another skill wants called, in a run of its own."""

    skill: str
    inputs: dict[str, JsonValue] = field(default_factory=dict)
    chain: tuple[str, ...] = ()
    """The skills that wait for it, the first caller first."""
    ceiling: AutonomyLevel = "commit"
    """It may not do more than the one that sends it."""


class CalledRun(StoredValue, frozen=True, kw_only=True):
    """Work that another run does: which one, so that it is found and not started again."""

    run_id: str
    call: SkillCall


class ModelDecision(StoredValue, frozen=True, kw_only=True):
    """One reply of a model, understood."""

    selected_skill: str | None = None
    reasoning_summary: str = ""
    required_disclosure_paths: tuple[str, ...] = ()
    planned_actions: tuple[ActionStep, ...] = ()


def read_failure(text: str) -> dict[str, JsonValue] | None:
    """The fields of a failed result in the form `{"success": false, "error", "message", …}`; None for other text."""
    if not text.startswith("{"):
        return None
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("success") is False else None


def write_failure(code: str, message: str) -> str:
    """What `read_failure` reads."""
    return json.dumps({"success": False, "error": code, "message": message}, ensure_ascii=False)


def answers_in_json(tool: str) -> bool:
    """Scripts, the tools of skills and those of MCP servers: their failures have a code that a model can go by."""
    return tool in ("script_list", "script_help", "script_run") or "." in tool or "/" in tool


def describe_failure(text: str) -> str:
    """What a failed result says in words: its message where it is JSON, else the text itself."""
    failure = read_failure(text)
    return text if failure is None else str(failure.get("message") or failure.get("error") or text)


def describe_success(text: str) -> str:
    """What a script's result says in words: its summary, else the result itself; other text as it is."""
    success = read_success(text)
    return text if success is None else find_summary(success) or text


def read_success(text: str) -> dict[str, JsonValue] | None:
    """The fields of a script's result in the form `{"success": true, "result", …}`; None for other text."""
    if not text.startswith('{"success": true'):
        return None
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def find_summary(success: dict[str, JsonValue]) -> str | None:
    """The words of what `read_success` read: the summary of its result, or a result that is text."""
    result = success.get("result")
    summary = result.get("summary") if isinstance(result, dict) else result
    return summary if isinstance(summary, str) else None


class StepExecutionResult(StoredValue, frozen=True, kw_only=True):
    """What one step came to, in the few words that later turns need."""

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
