"""Commands inside a run: allowed, asked about, denied or disabled; the approved call runs and is logged."""

import json
import os
from pathlib import Path

import pytest
from pydantic import JsonValue

from metier.engine.options import RuntimeOptions
from metier.engine.state.run_state import RunState
from metier.messages import ToolResultPart
from metier.runtime.approval_questions import ApprovalQuestion, Asker, Reply
from metier.runtime.driver import DriveOptions
from metier.runtime.history.replays import replay_run
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says
from metier.tools.options import ShellOptions

pytestmark = pytest.mark.anyio

RULES = "tool_approvals: [{tool: Bash, allow: true, when: {command: {startsWith: git status}}}]\n"


class Terminal:
    """One run in which the model calls one command."""

    def __init__(self, folder: Path, *, shell: ShellOptions | None = None) -> None:
        self.folder = folder
        self.shell = shell or ShellOptions()
        self.events: list[dict[str, JsonValue]] = []
        self.provider = ScriptedProvider()

    async def run(self, command: str, ask: Asker | None = None) -> RunState:
        self.provider = ScriptedProvider(calls(ToolCall("Bash", {"command": command})), says("done"))
        host = Host(
            trust=MADE_HERE,
            settings=Settings(runtime=RuntimeOptions(profile="guarded"), shell=self.shell),
            workspace=self.folder,
            home=self.folder,
            environ={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
            provider=self.provider,
        )
        async with open_runtime(host) as runtime:
            state = await runtime.start(RunRequest(task="look"), DriveOptions(ask=ask))
            report = await replay_run(runtime, state.run_id)
            assert report.outcome.divergence is None
        log = self.folder / "runs" / state.run_id / "events.jsonl"
        self.events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return state

    def find(self, kind: str) -> list[dict[str, JsonValue]]:
        return [event["payload"] for event in self.events if event["event_type"] == kind]  # pyright: ignore[reportReturnType]

    @property
    def answer(self) -> str:
        (part,) = self.provider.requests[-1].messages[-1].parts
        assert isinstance(part, ToolResultPart)
        return part.text


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / ".agent").mkdir()
    (tmp_path / ".agent" / "policy.yaml").write_text(RULES, encoding="utf-8")
    return tmp_path


async def test_an_allowed_command_runs_and_the_log_names_the_rule(workspace: Path) -> None:
    terminal = Terminal(workspace)

    state = await terminal.run("git status --short")

    assert state.status == "completed"
    (started,) = terminal.find("step_started")
    assert started["tool"] == "Bash"
    assert started["arguments"] == {"command": "git status --short"}
    assert (started["verdict"], started["rule"]) == ("allow", "host rule 1 (.agent/policy.yaml:1)")
    (ended,) = terminal.find("skill_step_executed")
    assert (ended["tool"], ended["action"], ended["truncated"]) == ("Bash", "run_command", False)
    assert ended["exit_code"] in (0, 128)
    assert float(str(ended["duration_ms"])) > 0


@pytest.mark.parametrize("command", ["git status; touch PWNED", "git status $(touch PWNED)", "git -c a.b=c status"])
async def test_a_command_beyond_its_rule_pauses_an_unattended_run(workspace: Path, command: str) -> None:
    terminal = Terminal(workspace)

    state = await terminal.run(command)

    assert state.status == "paused"
    assert state.pause is not None
    assert state.pause.pause == "approval"
    assert not (workspace / "PWNED").exists()


async def test_the_command_that_runs_is_the_one_shown_and_approved(workspace: Path) -> None:
    shown: list[str] = []

    async def approve(question: ApprovalQuestion) -> Reply:
        assert question.asked is not None
        shown.append(question.asked.preview)
        return Reply(decision="approved", by="ada")

    terminal = Terminal(workspace)
    await terminal.run("touch 'a b' && printf '%s' \"it's\"", ask=approve)

    assert shown == ["Run without a shell:\n  touch 'a b'\n  printf %s 'it'\"'\"'s'"]
    assert (workspace / "a b").exists()
    assert terminal.answer == "it's"
    assert terminal.find("step_started")[0]["verdict"] == "ask"


async def test_a_line_blocked_by_the_mode_is_not_asked_about(workspace: Path) -> None:
    terminal = Terminal(workspace, shell=ShellOptions(mode="allowlist", allowed_prefixes=("git status",)))

    state = await terminal.run("git status; touch PWNED")

    assert state.status == "completed"
    assert terminal.find("approval_requested") == []
    assert "begins with none of shell.allowed_prefixes" in terminal.answer
    assert not (workspace / "PWNED").exists()


async def test_a_disabled_shell_is_neither_offered_nor_run(workspace: Path) -> None:
    terminal = Terminal(workspace, shell=ShellOptions(mode="off"))

    await terminal.run("git status")

    assert "Bash" not in [tool.name for tool in terminal.provider.requests[0].tools]
    assert "There is no tool 'Bash'" in terminal.answer


async def test_long_output_is_saved_in_the_run_folder(workspace: Path) -> None:
    (workspace / ".agent" / "policy.yaml").write_text("tool_approvals: [{tool: Bash, allow: true}]\n", encoding="utf-8")
    terminal = Terminal(workspace, shell=ShellOptions(max_output_chars=300))

    state = await terminal.run("seq 1 5000")

    (artifact,) = terminal.find("artifact_written")
    assert f"the full text is in runs/{state.run_id}/artifacts/" in terminal.answer
    assert len(terminal.answer) <= 300
    kept = Path(str(artifact["path"])).read_text(encoding="utf-8")
    assert kept.split() == [str(number) for number in range(1, 5001)]
    assert terminal.find("skill_step_executed")[0]["truncated"] is True
