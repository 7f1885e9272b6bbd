"""Signals at a real terminal: Ctrl-C at a prompt and during a reply, a closed terminal, Ctrl-Z."""

import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from threading import Event

import pytest
from chat_pty import AGENT, CTRL_BACKSLASH, CTRL_C, Terminal, agent_terminal
from mcp_workspace import accept, use_hostile
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace

from metier.store.machine import SystemMachine

pytestmark = pytest.mark.slow

LONG = f"The first half\n{'of a long answer\n' * 200}end of what came"
GUARDED = ("--profile", "guarded")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a grace period longer than any test."""
    monkeypatch.setenv("AGENT_RUNTIME_SIGNAL_GRACE_SECONDS", "3600")


def end_after(terminal: Terminal, keys: str) -> int:
    """Return the exit code of a process that does not wait for the grace period."""
    terminal.type(keys)
    return terminal.wait_for_end()


def find_pause(workspace: Workspace) -> str:
    return [event for event in workspace.events() if event["event_type"] == "run_paused"][-1]["payload"]["kind"]


@pytest.mark.usefixtures("patient")
def test_ctrl_c_at_the_approval_prompt_exits_at_once_and_leaves_it_pending(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("Bash", command="touch made"), says("Done."))
    with agent_terminal(workspace.folder, "run", "Make it", *GUARDED) as terminal:
        terminal.wait_for("[?]: ")
        code = end_after(terminal, CTRL_C)

    assert (code, find_pause(workspace)) == (3, "approval")
    assert not (workspace.folder / "made").exists()


@pytest.mark.usefixtures("patient")
def test_ctrl_c_during_a_reply_ends_at_once_and_keeps_the_partial_text(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says(LONG))
    model.halting.set()
    with agent_terminal(workspace.folder, "run", "Write") as terminal:
        assert model.asked.wait(100)
        terminal.wait_for("of a long answer")  # the screen shows the end of what came
        terminal.type(CTRL_C)
        terminal.wait_for("press Ctrl-C again")
        terminal.wait_for("end of what came")
        code = end_after(terminal, "")
    model.released.set()

    assert code == 130
    events = workspace.events()
    assert [event["event_type"] for event in events[-4:]] == [
        "signal_received", "graceful_shutdown_started", "llm_request_failed", "run_paused",
    ]  # fmt: skip
    assert events[-2]["payload"]["reason"] == "interrupted"
    assert events[-2]["payload"]["partial_text"].endswith("end of what came")


@pytest.mark.usefixtures("patient")
def test_ctrl_c_during_the_reply_of_a_child_ends_at_once(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/tasks/note/TASK.md", "---\nname: note\n---\n\nWrite a note.\n")
    model.follow(says("Half a note"))
    model.silent.set()
    with agent_terminal(workspace.folder, "task", "run", "note") as terminal:
        assert model.asked.wait(100)
        code = end_after(terminal, CTRL_C)
    model.released.set()

    assert code == 130


@pytest.mark.usefixtures("patient")
def test_ctrl_c_during_a_command_kills_it_at_once_and_pauses_the_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Bash", command="echo $$ > began; exec sleep 600"), says("Done."))
    with agent_terminal(workspace.folder, "run", "Wait") as terminal:
        _wait_for_file(workspace.folder / "began")
        code = end_after(terminal, CTRL_C)

    assert code == 130
    assert not _is_alive(int((workspace.folder / "began").read_text()))
    model.follow(says("Done."))
    assert workspace.agent("resume", "latest", "--quiet") == 0


@pytest.mark.usefixtures("patient")
def test_the_quit_key_pauses_the_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    with agent_terminal(workspace.folder, "run", "Write") as terminal:
        assert model.asked.wait(100)
        code = end_after(terminal, CTRL_BACKSLASH)
    model.silent.clear()
    model.released.set()

    assert (code, find_pause(workspace)) == (131, "signal")
    assert workspace.agent("resume", "latest", "--quiet") == 0


@pytest.mark.usefixtures("patient")
def test_a_closed_terminal_pauses_the_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    with agent_terminal(workspace.folder, "run", "Write") as terminal:
        assert model.asked.wait(100)
        terminal.hang_up()
        code = terminal.process.wait(100)
    model.silent.clear()
    model.released.set()

    assert code == 129
    assert find_pause(workspace) == "signal"
    assert workspace.agent("resume", "latest", "--quiet") == 0


@pytest.mark.usefixtures("patient")
def test_sigint_from_a_supervisor_ends_a_script_as_fast_as_ctrl_c(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Bash", command="echo $$ > began; exec sleep 600"), says("Done."))
    process = workspace.start("run", "Wait")
    _wait_for_file(workspace.folder / "began")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)

    (stopping,) = [event for event in workspace.events() if event["event_type"] == "graceful_shutdown_started"]
    assert (process.returncode, stopping["payload"]["grace_seconds"]) == (130, 0.5)
    assert not _is_alive(int((workspace.folder / "began").read_text()))


PRINTING = """import pathlib, sys, time
print("half of the report", flush=True)
print("a warning", file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1]).write_text("1")
time.sleep(600)
"""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("tool", ["Bash", "script_run"])
def test_output_so_far_of_an_interrupted_step_reaches_the_user_and_the_model(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], *, tool: str, number: int
) -> None:
    workspace.add_skill("reporter", "Write reports with a script.", report=PRINTING)
    began = workspace.folder / "began"
    token = "ghp_" + "a1B2c3D4e5" * 4
    line = f"echo half of the report; echo a warning {token} >&2; echo 1 > began; exec sleep 600"
    script = {"skill_name": "reporter", "script_name": "report", "args": [str(began)], "json": False}
    model.follow(calls("Bash", command=line) if tool == "Bash" else calls("script_run", **script), says("Done."))
    process = workspace.start("run", "Report")
    _wait_for_file(began)
    process.send_signal(number)
    process.communicate(timeout=100)

    assert workspace.agent("resume", "latest", "--quiet") == 0
    result = str(model.received[-1]["messages"][-1]["content"])
    assert "Stopped before it ended" in result
    assert "half of the report\n[stderr]\na warning" in result
    assert token not in result
    (executed,) = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_step_executed"]
    assert executed["stdout_summary"].startswith("half of the report")
    capsys.readouterr()
    assert workspace.agent("runs", "show", "latest") == 0
    assert "half of the report" in capsys.readouterr().out
    assert workspace.agent("replay", workspace.run_ids()[-1], "--execute") == 0


PRINTING_TOOLSET = """import time
from pathlib import Path
from metier.tools.toolsets import AgentToolset


class Report(AgentToolset):
    def get_tools(self):
        return [self.report]

    def report(self, began: str) -> str:
        \"\"\"Write a report.\"\"\"
        print("half of the report")
        Path(began).write_text("1")
        time.sleep(600)
"""

PRINTING_HELP = PRINTING.replace("sys.argv[1]", "'{began}'")


def add_reporter(workspace: Workspace, began: Path) -> None:
    """Add a skill and an MCP server that print half of a report and wait."""
    folder = workspace.add_skill("reporter", "Write reports.", report=PRINTING_HELP.format(began=began))
    text = (folder / "SKILL.md").read_text()
    (folder / "SKILL.md").write_text(text.replace("name: ", "toolsets: [toolsets.report:Report]\nname: ", 1))
    (folder / "toolsets").mkdir()
    (folder / "toolsets" / "report.py").write_text(PRINTING_TOOLSET)
    accept(workspace, hostile=use_hostile())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("script_help", {"skill_name": "reporter", "script_name": "report"}),
        ("reporter__report", {"began": "BEGAN"}),
        ("hostile___hang", {"text": "BEGAN"}),
    ],
)
def test_output_so_far_is_kept_for_script_help_toolsets_and_mcp_tools(
    workspace: Workspace, model: ModelServer, *, tool: str, arguments: dict[str, str]
) -> None:
    began = workspace.folder / "began"
    add_reporter(workspace, began)
    filled: dict[str, object] = {key: value.replace("BEGAN", str(began)) for key, value in arguments.items()}
    model.follow(Reply(calls=((tool, filled),)), says("Done."))
    process = workspace.start("run", "Report", "--profile", "permissive")
    _wait_for_file(began)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)

    assert workspace.agent("resume", "latest", "--quiet") == 0
    result = str(model.received[-1]["messages"][-1]["content"])
    assert "Stopped before it ended, after " in result
    assert "half of the report" in result
    (executed,) = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_step_executed"]
    assert executed["duration_ms"] > 0
    assert "half of the report" in executed["stdout_summary"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("has_terminal", [True, False])
def test_hangup_ends_a_command_as_fast_as_ctrl_c(
    workspace: Workspace, model: ModelServer, *, has_terminal: bool
) -> None:
    model.follow(calls("Bash", command="echo $$ > began; exec sleep 600"), says("Done."))
    if has_terminal:
        with agent_terminal(workspace.folder, "run", "Wait") as terminal:
            _wait_for_file(workspace.folder / "began")
            terminal.hang_up()
            code = terminal.process.wait(100)
    else:
        process = workspace.start("run", "Wait")
        _wait_for_file(workspace.folder / "began")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=100)
        code = process.returncode

    (stopping,) = [event for event in workspace.events() if event["event_type"] == "graceful_shutdown_started"]
    assert (code, stopping["payload"]["grace_seconds"]) == (129, 0.5)
    assert find_pause(workspace) == "signal"
    assert not _is_alive(int((workspace.folder / "began").read_text()))


def test_a_run_started_with_nohup_continues_when_its_terminal_closes(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    process = subprocess.Popen(
        ["nohup", str(AGENT), "run", "Write"],
        cwd=workspace.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert model.asked.wait(100)
    process.send_signal(signal.SIGHUP)
    model.silent.clear()
    model.released.set()
    out, _ = process.communicate(timeout=100)

    assert (process.returncode, out) == (0, "Done.\n")


def test_a_stopped_run_keeps_its_lease_and_continues(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(says("Done."))
    model.silent.set()
    process = workspace.start("run", "Write")
    assert model.asked.wait(100)
    process.send_signal(signal.SIGTSTP)
    _wait_until_stopped(process.pid)

    assert _find_lease_seconds(workspace) > 600
    assert workspace.agent("resume", "latest") == 10
    assert "drives run" in capsys.readouterr().err
    model.silent.clear()
    model.released.set()
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "Done.\n")


def test_a_run_whose_stopped_process_was_killed_can_be_taken_over(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    process = workspace.start("run", "Write")
    assert model.asked.wait(100)
    process.send_signal(signal.SIGTSTP)
    _wait_until_stopped(process.pid)
    process.kill()
    process.communicate(timeout=100)
    model.silent.clear()
    model.released.set()

    assert workspace.agent("resume", "latest", "--quiet") == 0


def _wait_for_file(path: Path) -> None:
    until = time.monotonic() + 100
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < until, f"{path.name} was not made"
        Event().wait(0.01)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return
        Event().wait(0.01)
    raise AssertionError("the process was not stopped")


def _find_lease_seconds(workspace: Workspace) -> float:
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as connection:
        (until,) = connection.execute("SELECT until FROM leases WHERE owner <> ''").fetchone()
    return until - SystemMachine().uptime()
