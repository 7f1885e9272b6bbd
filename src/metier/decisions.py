"""What a model's reply means: which skill, what to disclose, what to do next. Pure values."""

from typing import Literal

from pydantic import Field, JsonValue

from metier.messages import Value

type ActionType = Literal["call_skill", "run_command", "call_tool", "ask_user", "delegate", "finish"]


class ActionStep(Value):
    """One thing to do. `params` of `call_tool` are `{call_id, tool, arguments}`."""

    type: ActionType
    params: dict[str, JsonValue] = Field(default_factory=dict)
    expected_output: str = ""


class ModelDecision(Value):
    """One reply of a model, understood."""

    selected_skill: str | None = None
    reasoning_summary: str = ""
    required_disclosure_paths: tuple[str, ...] = ()
    planned_actions: tuple[ActionStep, ...] = ()
