"""The reference run for kills: every effect class, concurrent reads, two hand-offs, an approval, a question,
a repair and a retry. The child processes load it by file; the tests of the suite also load it in broken form.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from metier.approval.rules import Verdict
from metier.decisions import ActionStep
from metier.engine.decide import Policy
from metier.engine.options import RuntimeOptions
from metier.messages import ModelReply, TextPart, ToolCallPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.host import Host
from metier.settings.sections import Settings
from metier.skills.options import SkillsOptions
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.crash_kit import read_effects
from metier.testing.crash_scenario import Reach, Scenario
from metier.testing.recorded_effect import RecordedEffect, build_settle
from metier.tools.base import ToolContext, ToolResult
from metier.tools.effects import Effect

SCRIPT = """
import argparse, json, os, signal, sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--json", action="store_true")
folder = Path(parser.parse_args().folder)
name = Path(__file__).stem
key = os.environ["AGENT_IDEMPOTENCY_KEY"]


def append(path, line):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode() + b"\\n")
    os.fsync(descriptor)
    os.close(descriptor)


def reach(place, goes_on=False):
    point = f"script:{name}:{place}"
    append(folder / "points" / "reached", point)
    try:
        wanted, occurrence, agent = (folder / "points" / "armed").read_text().split()
    except FileNotFoundError:
        return
    reached = (folder / "points" / "reached").read_text().splitlines().count(point)
    if wanted == point and int(occurrence) == reached:
        (folder / "points" / "armed").unlink()
        os.kill(int(agent), signal.SIGKILL)
        while not goes_on:
            signal.pause()


def effect():
    append(folder / "effects.jsonl", json.dumps({"effect": "opaque", "name": name, "key": key}))


reach("begun")
artifacts = []
if name == "flaky":
    reach("failing")
    sys.exit(3)
if name == "report":
    (folder / "workspace" / "report.md").write_text("# Report\\n\\nAll is well.\\n")
    artifacts = ["report.md"]
reach("middle")
effect()
reach("done", goes_on=name == "record")
print(json.dumps({"artifacts": artifacts}))
"""

SKILLS = {"alpha": (), "beta": ("record", "flaky"), "gamma": ("report",)}


class Mail(RecordedEffect):
    """A tool that can check whether its effect happened."""

    async def probe(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult | None:
        sent = any(effect["key"] == context.idempotency_key for effect in read_effects(self.effects))
        if not sent:
            return ToolResult(ok=False, error="It was not sent")
        return ToolResult(ok=True, output=f"{self.name} {json.dumps(arguments, sort_keys=True)}")


type Call = tuple[str, dict[str, JsonValue]]


class Narrator:
    """A model with scripted lines. The request determines the next one, because another process may send it."""

    name = "narrator"

    def __init__(self, lines: list[list[Call]], *, spoilt: int = 0) -> None:
        self.lines = lines
        self.spoilt = spoilt
        """The turn whose first reply is cut off."""

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        said = [part.id for m in request.messages for part in m.parts if isinstance(part, ToolCallPart)]
        turn = max((int(call_id.partition(".")[0]) for call_id in said), default=0) + 1
        last = "".join(part.text for part in request.messages[-1].parts if isinstance(part, TextPart))
        usage = Usage(input_tokens=100, output_tokens=10)
        if turn == self.spoilt and "Answer again" not in last:
            half = (TextPart(text="I was about to"),)
            return ModelReply(parts=half, stop_reason="max_tokens", usage=usage, provider=self.name, model="play")
        calls = tuple(
            ToolCallPart(id=f"{turn}.{index}", name=name, arguments=arguments)
            for index, (name, arguments) in enumerate(self.lines[turn - 1], start=1)
        )
        return ModelReply(parts=calls, stop_reason="tool_calls", usage=usage, provider=self.name, model="play")

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class AskFor:
    """A policy that asks before one tool."""

    inner: Policy
    tool: str

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        if action.params.get("tool") == self.tool:
            return Verdict(decision="ask", reason="Money is asked for")
        return self.inner.judge(action, skill=skill)

    def effect(self, action: ActionStep) -> Effect:
        return self.inner.effect(action)


def write_skills(folder: Path) -> None:
    """Write the skills once for all cases: the prepared environment of a script depends on its path."""
    for name, scripts in SKILLS.items():
        skill = folder / name
        if (skill / "SKILL.md").exists():
            continue
        (skill / "scripts").mkdir(parents=True)
        for script in scripts:
            (skill / "scripts" / f"{script}.py").write_text(SCRIPT)
        text = f"---\nname: {name}\ndescription: The {name} part of the reference run.\n---\n# {name}\n\nDo it.\n"
        (skill / "SKILL.md").write_text(text)


def make_workspace(folder: Path) -> Path:
    """Create the workspace next to the files of kit and tools, which need no snapshot."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    return workspace


def build_lines(folder: Path) -> list[list[Call]]:
    def script(skill: str, name: str) -> Call:
        return ("script_run", {"skill_name": skill, "script_name": name, "args": [str(folder)]})

    return [
        [("use_skill", {"skill": "alpha", "reason": "to begin"})],
        [("look", {"at": "a"}), ("look", {"at": "b"}), ("look", {"at": "c"})],
        [("set_value", {"to": 1}), ("post", {"text": "hello"})],
        [("launch", {"what": "rocket"})],
        [("mail", {"to": "anna"})],
        [("use_skill", {"skill": "beta", "reason": "scripts come next"})],
        [script("beta", "record")],
        [script("beta", "flaky")],
        [("ask_user", {"question": "Which colour?"})],
        [("use_skill", {"skill": "gamma", "reason": "the report"})],
        [script("gamma", "report")],
        [("pay", {"amount": 5})],
        [("finish", {"result": "All done."})],
    ]


def build_tools(effects: Path, reach: Reach) -> tuple[RecordedEffect, ...]:
    return (
        RecordedEffect("look", "read", effects, reach),
        RecordedEffect("set_value", "idempotent", effects, reach),
        RecordedEffect("post", "keyed", effects, reach),
        RecordedEffect("launch", "opaque", effects, reach),
        Mail("mail", "opaque", effects, reach),
        RecordedEffect("pay", "opaque", effects, reach),
    )


def build(folder: Path, reach: Reach) -> Scenario:
    shared = folder.parent / "shared"
    write_skills(shared / "skills")
    effects = folder / "effects.jsonl"
    # What a script needs of the environment, and nothing of the person who runs the tests.
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    host = Host(
        trust=MADE_HERE,
        settings=Settings(
            runtime=RuntimeOptions(max_turns=20), skills=SkillsOptions(dir=str(shared / "skills"), enabled="none")
        ),
        workspace=make_workspace(folder),
        home=shared / "home",
        environ={**environ, "XDG_CACHE_HOME": str(shared / "cache"), "PYTHON": sys.executable},
        provider=Narrator(build_lines(folder), spoilt=4),
        tools=build_tools(effects, reach),
        narrow=lambda policy: AskFor(policy, "pay"),
    )
    return Scenario(
        host=host,
        task="Go through the reference run with alpha, beta and gamma",
        effects=effects,
        settle=build_settle(effects),
        answer=lambda _question: {"colour": "blue"},
        artifacts=(folder / "workspace" / "report.md",),
    )
