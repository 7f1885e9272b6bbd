"""Small runs for tests: a workspace with two skills, tools of every effect class, and a scripted user."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from metier.engine.options import RuntimeOptions
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import ToolFailed
from metier.runtime.answers import Answer
from metier.runtime.driver import DriveOptions
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.scripted import Line, ScriptedProvider, says
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
WORDS = {"notes": "Takes notes and finds them again.", "reports": "Writes reports from notes."}
ENOUGH = tuple(says("All done.") for _ in range(20))
"""More last words than a run can need."""


@dataclass
class SmallTool:
    """A tool that returns its arguments and records its steps."""

    name: str
    effect: Effect = "read"
    fails: bool = False
    stopper: Stopper | None = None
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
        if self.stopper is not None and not self.stopper.is_set:
            self.stopper.request("SIGINT")
        if self.fails:
            raise ToolFailed("It broke", code="execution_failed")
        return ToolResult(ok=True, output=f"{self.name} saw {arguments.get('text', 'nothing')}")


def build_tools(stopper: Stopper | None = None) -> tuple[SmallTool, ...]:
    return (
        SmallTool("Look"),
        SmallTool("Put", "idempotent"),
        SmallTool("Pay", "opaque"),
        SmallTool("Post", "keyed"),
        SmallTool("Stop", stopper=stopper),
        SmallTool("notes.break", fails=True),
    )


def build_workspace(folder: Path) -> Path:
    for name, words in WORDS.items():
        skill = folder / "skills" / name
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(SKILL.format(name=name, description=words))
    return folder


@asynccontextmanager
async def open_at(
    folder: Path,
    *script: Line,
    profile: Literal["permissive", "guarded"] = "permissive",
    tools: Sequence[SmallTool] | None = None,
    max_turns: int = 8,
) -> AsyncGenerator[Runtime]:
    options = {"profile": profile, "max_turns": max_turns, "max_llm_retries": 0}
    host = Host(
        trust=MADE_HERE,
        settings=Settings(runtime=RuntimeOptions.model_validate(options)),
        workspace=folder,
        home=folder / "home",
        environ={},
        provider=ScriptedProvider(*script),
        tools=build_tools() if tools is None else tuple(tools),
    )
    async with open_runtime(host) as runtime:
        yield runtime


async def carry_out(runtime: Runtime, *, task: str = "take notes", stopper: Stopper | None = None) -> RunState:
    """Run from start to end, answering every question."""
    state = await runtime.start(RunRequest(task=task), DriveOptions(stopper=stopper))
    return await answer_all(runtime, state)


async def answer_all(
    runtime: Runtime, state: RunState, *, doubt: Literal["done", "retry", "skip"] = "done"
) -> RunState:
    """Answer every pause: deny every second approval, answer `blue` to questions, `doubt` to unknown outcomes."""
    for turn in range(100):
        if state.pause is None:
            return state
        for row in await runtime.store.list_approvals(run_id=state.run_id, status="open"):
            status = "denied" if turn % 2 else "approved"
            await runtime.store.decide_approval(row.approval_id, status=status, decided_by="kim", reason="a reason")
        answer = Answer(
            values={"colour": "blue"} if state.question else None,
            doubt=doubt if state.pause.pause == "in_doubt" else None,
            by="kim",
        )
        state = await runtime.resume(state.run_id, answer)
    raise AssertionError("the run never ends")
