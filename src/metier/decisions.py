"""What a model's reply means (which skill, what to disclose, what to do next), and what came of it. Pure values."""

from typing import Literal

from pydantic import Field, JsonValue

from metier.messages import Value

type ActionType = Literal["call_skill", "run_command", "call_tool", "ask_user", "delegate", "finish"]


type AutonomyLevel = Literal["read", "suggest", "implement", "commit"]
"""How much a skill may do, the least first."""

type StepStatus = Literal["succeeded", "failed", "skipped", "timeout", "denied", "in_doubt"]


class ActionStep(Value):
    """One thing to do.

    `params` by type: `call_tool {tool, arguments}`, `run_command {command, …}`, `call_skill {skill, reason, inputs}`
    (with inputs the skill's code is called, without them it takes charge), `ask_user {question, fields}`,
    `delegate {agent, task}`, `finish {result}`.
    """

    type: ActionType
    params: dict[str, JsonValue] = Field(default_factory=dict)
    expected_output: str = ""
    call_id: str = ""
    """The model's own id of the call, which its result must name; vendors differ, so events leave it out."""


def find_invocation(action: ActionStep) -> dict[str, JsonValue] | None:
    """The inputs with which an action calls a skill's code; nothing where it does not."""
    inputs = action.params.get("inputs") if action.type == "call_skill" else None
    return inputs if isinstance(inputs, dict) else None


class SkillCall(Value):
    """The code of a skill that another skill wants called, in a run of its own."""

    skill: str
    inputs: dict[str, JsonValue] = Field(default_factory=dict)
    chain: tuple[str, ...] = ()
    """The skills that wait for it, the first caller first."""
    ceiling: AutonomyLevel = "commit"
    """It may not do more than the one that sends it."""


class HandedOn(Value):
    """Work that another run does: which one, so that it is found and not begun again."""

    run_id: str
    call: SkillCall


class ModelDecision(Value):
    """One reply of a model, understood."""

    selected_skill: str | None = None
    reasoning_summary: str = ""
    required_disclosure_paths: tuple[str, ...] = ()
    planned_actions: tuple[ActionStep, ...] = ()


class StepExecutionResult(Value):
    """What one step came to, in the few words that later turns need."""

    step_id: str
    status: StepStatus
    tool: str = ""
    exit_code: int | None = None
    stdout_summary: str = ""
    stderr_summary: str = ""
    retry_count: int = 0
