"""A small workspace of agents, and a model with scripted lines per agent."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from metier.engine.options import RuntimeOptions
from metier.messages import Message, ModelReply, TextPart, ToolCallPart, ToolResultPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.host import Host
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.recorded_effect import describe_effect
from metier.tools.base import Tool, ToolContext, ToolInfo, ToolResult
from metier.tools.effects import Effect

AGENT = """\
---
name: {name}
description: Does what a {name} does.
profile: permissive
{more}---

You are the {name}.
"""

type Call = tuple[str, Mapping[str, JsonValue]]
type Line = Call | Sequence[Call]
"""A model's reply in one turn: one call or several."""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def write_agents(folder: Path, *names: str, more: str = "") -> Path:
    return write(folder, {f".agent/agents/{n}/AGENT.md": AGENT.format(name=n, more=more) for n in names})


@dataclass
class Cast:
    """A model that answers by role: the first word of the system prompt's role, else `boss`.

    The number of turns in the request selects the line, so that another process gets the same ones.
    """

    lines: Mapping[str, Sequence[Line]]
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest])
    name: str = "cast"
    price: Usage = field(default_factory=lambda: Usage(input_tokens=100, output_tokens=10))

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        del observe
        self.requests.append(request)
        role = find_role(request)
        turn = sum(message.role == "assistant" for message in request.messages)
        parts = tuple(
            ToolCallPart(id=f"{role}-{turn}-{number}" if number else f"{role}-{turn}", name=name, arguments=dict(given))
            for number, (name, given) in enumerate(list_calls(self.lines[role][turn]))
        )
        return ModelReply(
            parts=parts, stop_reason="tool_calls", usage=self.price, provider=self.name, model=request.model
        )

    async def count_tokens(self, request: ModelRequest) -> int | None:
        del request
        return None

    async def close(self) -> None:
        return None


def list_calls(line: Line) -> list[Call]:
    match line:
        case (str() as name, arguments):
            return [(name, arguments)]
        case _:
            return list(line)


def find_role(request: ModelRequest) -> str:
    for block in request.system:
        if "You are the " in block.text:
            return block.text.split("You are the ")[1].split(".")[0]
    return "boss"


def find_told(request: ModelRequest) -> str:
    """Return all text in a request's messages."""
    return "\n".join(_texts(message) for message in request.messages)


def _texts(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart | ToolResultPart))


@dataclass
class Deed:
    """A tool that records its arguments."""

    name: str
    effect: Effect = "opaque"
    ran: list[dict[str, JsonValue]] = field(default_factory=list[dict[str, JsonValue]])

    @property
    def info(self) -> ToolInfo:
        return describe_effect(self.name, self.effect)

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        del context
        self.ran.append(arguments)
        return ToolResult(ok=True, output=f"{self.name} done")


@asynccontextmanager
async def open_team(
    folder: Path, cast: Cast, *, tools: Sequence[Tool] = (), **options: JsonValue
) -> AsyncGenerator[Runtime]:
    host = Host(
        trust=MADE_HERE,
        settings=Settings(runtime=RuntimeOptions.model_validate({"max_llm_retries": 0, **options})),
        workspace=folder,
        home=folder / "home",
        environ={},
        provider=cast,
        tools=tuple(tools),
    )
    async with open_runtime(host) as runtime:
        yield runtime
