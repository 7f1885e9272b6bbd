"""A workspace with two skills, small tools of every effect class, and the door to its runs."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import JsonValue

from metier.engine.options import RuntimeOptions
from metier.errors import ToolFailed
from metier.runtime.place import Place
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.model import Settings
from metier.testing.scripted import Line, ScriptedProvider
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier.tools.effects import Effect

SKILL = """\
---
name: {name}
description: {description}
---

# {name}

Do it with care.
"""


@dataclass
class CountingTool:
    """Says what it was told to say, and how often it ran."""

    name: str
    effect: Effect = "read"
    fails: bool = False
    ran: list[str] = field(default_factory=list[str])

    @property
    def info(self) -> ToolInfo:
        return ToolInfo(
            id=f"test:{self.name}",
            name=self.name,
            description=f"Does {self.name}.",
            category="custom",
            input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
            risk="low",
            effect=self.effect,
        )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        self.ran.append(context.step_id)
        if self.fails:
            raise ToolFailed("It broke", code="execution_failed")
        return ToolResult(ok=True, output=f"{self.name} saw {arguments.get('text', 'nothing')}")


def build_tools() -> tuple[CountingTool, ...]:
    return (
        CountingTool("Look"),
        CountingTool("Put", "idempotent"),
        CountingTool("Pay", "opaque"),
        CountingTool("Post", "keyed"),
        CountingTool("notes.break", "read", fails=True),
    )


type Open = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, words in (("notes", "Takes notes and finds them again."), ("reports", "Writes reports from notes.")):
        skill = folder / "skills" / name
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(SKILL.format(name=name, description=words))
    return folder


@pytest.fixture
def open_at(workspace: Path, tmp_path: Path) -> Open:
    """`async with open_at(line, …, profile="guarded") as runtime`"""

    @asynccontextmanager
    async def opened(
        *script: Line,
        profile: str = "permissive",
        tools: tuple[CountingTool, ...] | None = None,
        folder: Path | None = None,
        max_turns: int = 8,
    ) -> AsyncGenerator[Runtime]:
        runtime = RuntimeOptions.model_validate(
            {"profile": profile, "max_turns": max_turns, "max_llm_retries": 0, "retry_base_delay_seconds": 0}
        )
        place = Place(
            settings=Settings(runtime=runtime),
            workspace=folder or workspace,
            home=tmp_path / "home",
            environ={},
            provider=ScriptedProvider(*script),
            tools=build_tools() if tools is None else tools,
        )
        async with open_runtime(place) as opened_runtime:
            yield opened_runtime

    return opened
