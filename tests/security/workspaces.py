"""A workspace with real files and rules, and a scripted model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from metier.decisions import describe_failure
from metier.definitions.names import Profile
from metier.engine.entries.entry import Entry
from metier.engine.journal import read_entries
from metier.engine.options import RuntimeOptions
from metier.engine.state.run_state import RunState
from metier.messages import ToolResultPart
from metier.providers.base import Provider
from metier.providers.options import ModelOptions
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.history.replays import replay_run
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.scripted import Line, ScriptedProvider, ToolCall, calls
from metier.tools.base import Tool
from metier.tools.options import ShellOptions


def put(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def call(name: str, **arguments: JsonValue) -> Line:
    return calls(ToolCall(name, arguments))


@dataclass(slots=True)
class Drill:
    """One run and all its observable results."""

    workspace: Path
    script: Sequence[Line]
    profile: Profile = "guarded"
    agent: str = ""
    tools: tuple[Tool, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    shell: ShellOptions = field(default_factory=ShellOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    answers: Provider | None = None
    """Responder that replaces the script."""
    provider: ScriptedProvider = field(init=False)

    def __post_init__(self) -> None:
        self.provider = ScriptedProvider(*self.script)

    @property
    def host(self) -> Host:
        return Host(
            trust=MADE_HERE,
            settings=Settings(model=self.model, runtime=RuntimeOptions(profile=self.profile), shell=self.shell),
            workspace=self.workspace,
            # Beside it: a sandbox shows the workspace and hides the home.
            home=self.workspace.with_name(f"{self.workspace.name}-home"),
            environ=self.environ,
            provider=self.answers or self.provider,
            tools=self.tools,
        )

    async def run(self, task: str = "work") -> RunState:
        """Run until it ends or pauses, then check that its replay is equal."""
        self.workspace.mkdir(exist_ok=True)
        async with open_runtime(self.host) as runtime:
            state = await runtime.start(RunRequest(task=task, agent=self.agent))
            await check_replay(runtime, state.run_id)
        return state

    async def resume(self, run_id: str) -> RunState:
        async with open_runtime(self.host) as runtime:
            state = await runtime.resume(run_id)
            await check_replay(runtime, run_id)
        return state

    async def decide(self, decision: str, *, arguments: dict[str, JsonValue] | None = None) -> ApprovalQuestion:
        """Decide the only pending approval."""
        async with open_runtime(self.host) as runtime:
            (question,) = await runtime.approvals.list_all(status="open")
            reply = Reply(
                decision="approved" if decision == "approved" else "denied",
                by="ada",
                reason="" if decision == "approved" else "No, that is not what I asked for",
                arguments=arguments,
            )
            await runtime.approvals.decide(question, reply)
        return question

    async def questions(self) -> list[ApprovalQuestion]:
        async with open_runtime(self.host) as runtime:
            return await runtime.approvals.list_all(status="open")

    async def journal(self, run_id: str) -> list[Entry]:
        async with open_runtime(self.host) as runtime:
            return list(await read_entries(runtime.store, run_id))

    @property
    def told(self) -> list[str]:
        """Return the results sent to the model, oldest first; of JSON failures the message."""
        return [
            describe_failure(part.text)
            for message in self.provider.requests[-1].messages
            for part in message.parts
            if isinstance(part, ToolResultPart)
        ]

    def offered(self, request: int) -> set[str]:
        return {tool.name for tool in self.provider.requests[request].tools}


async def check_replay(runtime: Runtime, run_id: str) -> None:
    report = await replay_run(runtime, run_id)
    assert report.outcome.divergence is None, report.outcome.divergence
    assert report.outcome.compared == len(report.outcome.entries)
