"""The JSON lines between the agent and the worker process of a skill's toolsets. Pure values."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from metier.tools.effects import Effect, Risk
from metier.values import Value


class LoadRequest(Value):
    """Import the toolsets and tell their tools."""

    kind: Literal["load"] = "load"
    skill: str
    folder: str
    toolsets: tuple[str, ...]
    config: dict[str, JsonValue] = Field(default_factory=dict)


class CallRequest(Value):
    kind: Literal["call"] = "call"
    tool: str
    arguments: dict[str, JsonValue]
    idempotency_key: str = ""


type Request = Annotated[LoadRequest | CallRequest, Field(discriminator="kind")]


class DescribedTool(Value):
    name: str
    toolset: str
    """The class it is a method of."""
    description: str
    input_schema: dict[str, JsonValue]
    effect: Effect
    risk: Risk


class LoadFailure(Value):
    toolset: str
    """As written in `SKILL.md`, with the method where only that one is wrong."""
    code: str
    message: str


class LoadReply(Value):
    tools: tuple[DescribedTool, ...] = ()
    failures: tuple[LoadFailure, ...] = ()


class CallReply(Value):
    success: bool
    result: JsonValue = None
    message: str = ""
    error: str | None = None
