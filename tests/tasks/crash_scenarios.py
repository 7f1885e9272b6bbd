"""Delegating runs for kills at every crash point. Loaded by file in the child processes."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from teams import Call, Cast, Line, write, write_agents

from metier.engine.options import RuntimeOptions
from metier.messages import ModelReply, TextPart
from metier.providers.base import ModelRequest, Observer
from metier.runtime.child_runs import request_task
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.crash_scenario import Reach, Scenario
from metier.testing.recorded_effect import RecordedEffect, build_settle

STEPS = 10
STEP = """\
---
name: Step {number}
agent: worker
{following}---

Step {number} about {{{{inputs.topic}}}}.{earlier}
"""


class Echo(Cast):
    """A model whose steps return their input, so that the last result contains all of them."""

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        texts = [part.text for part in request.messages[0].parts if isinstance(part, TextPart)]
        told = [text for text in texts if not text.startswith(("# Environment", "# Input"))][-1]
        told = told.removeprefix("# This step")
        self.lines = {"worker": [("keep", {}), ("finish", {"result": f"[{told.strip()}]"})]}
        return await super().reply(request, observe=observe)


def get_workspace(folder: Path) -> Path:
    """Create the workspace next to the files of kit and tools, which need no snapshot."""
    return folder / "workspace"


def build_host(folder: Path, cast: Cast, *tools: RecordedEffect) -> Host:
    return Host(
        trust=MADE_HERE,
        settings=Settings(runtime=RuntimeOptions(max_llm_retries=0, max_turns=30)),
        workspace=get_workspace(folder),
        home=folder / "home",
        environ={},
        provider=cast,
        tools=tools,
    )


def build_task(folder: Path, reach: Reach) -> Scenario:
    """Build a task of ten steps, each with an effect that must happen once."""
    effects = folder / "effects.jsonl"
    workspace = get_workspace(folder)
    if not workspace.exists():
        write_agents(workspace, "worker", more="tool_approvals:\n  rules:\n    - {tool: keep, allow: true}\n")
        write(workspace, {f".agent/tasks/ten/{_file(n)}": _step(n) for n in range(1, STEPS + 1)})
    host = build_host(folder, Echo({}), RecordedEffect("keep", "keyed", effects, reach))

    def build_request(here: Host) -> RunRequest:
        return request_task(here, "ten", {"topic": "tides"})

    return Scenario(host=host, task="Ten", build_request=build_request, effects=effects, settle=build_settle(effects))


def _file(number: int) -> str:
    return "TASK.md" if number == 1 else f"{number:02}.md"


def _step(number: int) -> str:
    following = f"next: {_file(number + 1)}\n" if number < STEPS else ""
    if number == 1:
        following += "inputs:\n  - name: topic\n"
    earlier = f" Before: {{{{steps.{_file(number - 1)}.result}}}}" if number > 1 else ""
    return STEP.format(number=number, following=following, earlier=earlier)


LINES: dict[str, list[Call]] = {
    "boss": [
        ("delegate", {"agent": "lead", "task": "Pay them"}),
        ("post", {}),
        ("delegate", {"agent": "worker", "task": "Tell them"}),
        ("finish", {"result": "all done"}),
    ],
    "lead": [
        ("delegate", {"agent": "worker", "task": "Pay"}),
        ("ask_user", {"question": "Enough?"}),
        ("finish", {"result": "paid"}),
    ],
    "worker": [("pay", {}), ("finish", {"result": "worked"})],
}


def build_delegation(folder: Path, reach: Reach) -> Scenario:
    """Build a delegation of three levels, with an opaque effect at the lowest, an approval and a question."""
    effects = folder / "effects.jsonl"
    workspace = get_workspace(folder)
    if not workspace.exists():
        write_agents(workspace, "lead")
        write_agents(workspace, "worker", more="tool_approvals:\n  rules:\n    - {tool: pay, verdict: ask}\n")
    tools = (RecordedEffect("pay", "opaque", effects, reach), RecordedEffect("post", "keyed", effects, reach))
    host = build_host(folder, Cast(LINES), *tools)
    return Scenario(
        host=host,
        task="See to it",
        effects=effects,
        settle=build_settle(effects),
        answer=lambda _question: {"answer": "yes"},
    )


TOGETHER: dict[str, list[Line]] = {
    "boss": [
        ("delegate", {"tasks": [{"agent": name, "task": f"Look for {name}"} for name in ("asker", "quick", "reader")]}),
        ("post", {}),
        ("finish", {"result": "all looked"}),
    ],
    "asker": [("ask_user", {"question": "Where?"}), ("finish", {"result": "there"})],
    "quick": [("finish", {"result": "nothing"})],
    "reader": [("look", {}), ("finish", {"result": "seen"})],
}


SIDE_BY_SIDE: dict[str, list[Line]] = {
    **TOGETHER,
    "boss": [
        [("delegate", {"agent": name, "task": f"Look for {name}"}) for name in ("asker", "quick", "reader")],
        *TOGETHER["boss"][1:],
    ],
}
"""The same by three calls in one reply."""


def build_together(folder: Path, reach: Reach, *, lines: Mapping[str, Sequence[Line]] = TOGETHER) -> Scenario:
    """Build three concurrent children: one asks, one ends at once, one needs approval; then an effect."""
    effects = folder / "effects.jsonl"
    workspace = get_workspace(folder)
    if not workspace.exists():
        write_agents(workspace, "asker", "quick")
        write_agents(workspace, "reader", more="tool_approvals:\n  rules:\n    - {tool: look, verdict: ask}\n")
    tools = (RecordedEffect("look", "read", effects, reach), RecordedEffect("post", "keyed", effects, reach))
    return Scenario(
        host=build_host(folder, Cast(lines), *tools),
        task="See to it",
        effects=effects,
        settle=build_settle(effects),
        answer=lambda _question: {"answer": "here"},
    )


def build_side_by_side(folder: Path, reach: Reach) -> Scenario:
    return build_together(folder, reach, lines=SIDE_BY_SIDE)


APART: dict[str, list[Call]] = {
    "boss": [
        (
            "delegate",
            {"tasks": [{"agent": name, "task": "Write"} for name in ("left", "right")], "isolation": "worktree"},
        ),
        ("post", {}),
        ("finish", {"result": "all written"}),
    ],
    "left": [("Write", {"path": "a.txt", "content": "left\n"}), ("finish", {"result": "left"})],
    "right": [("Write", {"path": "a.txt", "content": "right\n"}), ("pay", {}), ("finish", {"result": "right"})],
}


def build_apart(folder: Path, reach: Reach) -> Scenario:
    """Build two children that write the same file in their own worktrees; the parent posts afterwards."""
    effects = folder / "effects.jsonl"
    workspace = get_workspace(folder)
    if not workspace.exists():
        write_agents(workspace, "left", "right")
        write(workspace, {"a.txt": "a\n", ".gitignore": "*\n!a.txt\n"})
        for words in ("init -q", "add a.txt", "-c user.name=Kim -c user.email=kim@example.org commit -qm first"):
            subprocess.run(["git", *words.split()], cwd=workspace, check=True, capture_output=True)
    tools = (RecordedEffect("pay", "keyed", effects, reach), RecordedEffect("post", "keyed", effects, reach))
    return Scenario(
        host=build_host(folder, Cast(APART), *tools), task="See to it", effects=effects, settle=build_settle(effects)
    )
