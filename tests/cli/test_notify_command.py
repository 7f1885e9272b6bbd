"""The notification command never runs programs written by a run, tested with strict runs in a real sandbox."""

import json
import os
from pathlib import Path

import pytest
from chat_pty import agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, run_approved, use_model

from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.levels import try_level

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def strict(workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A strict workspace whose virtual environment is activated."""
    trial = try_level("full", get_bubblewrap(os.environ, workspace.folder))
    if not trial.works:
        pytest.skip(f"sandbox level 'full' cannot be shown here: {trial.summary}")
    (workspace.folder / ".venv/bin").mkdir(parents=True)
    workspace.write(".venv/pyvenv.cfg", "home = /usr/bin\n")
    workspace.write("scripts/notify.sh", f"touch {workspace.folder.parent}/told\n")
    monkeypatch.setenv("PATH", f"{workspace.folder}/.venv/bin:{os.environ['PATH']}")
    return workspace


def configure(workspace: Workspace, model: ModelServer, *command: str, profile: str = "strict") -> None:
    runtime = {**QUICK, "profile": profile}
    workspace.configure(model=use_model(model), runtime=runtime, notify={"command": list(command), "events": ["ended"]})


def plant(workspace: Workspace, model: ModelServer, path: str, text: str) -> None:
    """Let a command of the run write a program that creates a file outside the workspace."""
    line = f"printf '{text}' > {path}; chmod +x {path}; cat {path}"
    model.follow(calls("Bash", command=line.replace("OUT", str(workspace.folder.parent / "escaped"))), says("Done."))


def has_escaped(workspace: Workspace) -> bool:
    return (workspace.folder.parent / "escaped").exists()


@pytest.mark.parametrize(
    ("command", "path", "text"),
    [
        (["notify-send", "Metier"], ".venv/bin/notify-send", r"#!/bin/sh\n: > OUT\n"),
        (["python3", "-m", "notifier"], "notifier.py", r'open("OUT", "w")\n'),
        (["sh", "-c", "helper; date"], ".venv/bin/date", r"#!/bin/sh\n: > OUT\n"),
    ],
)
def test_planted_program_is_not_run_as_the_notification_command(
    strict: Workspace, model: ModelServer, command: list[str], path: str, text: str
) -> None:
    configure(strict, model, *command)
    plant(strict, model, path, text)

    assert run_approved(strict) == 0

    assert (strict.folder / path).exists(), "the program could not write what the test is about"
    assert not has_escaped(strict)


@pytest.mark.parametrize(
    "command", [["sh", "scripts/notify.sh"], ["sh", "-c", ". $AGENT_PROJECT_DIR/scripts/notify.sh"]]
)
def test_program_cannot_rewrite_an_accepted_script(strict: Workspace, model: ModelServer, command: list[str]) -> None:
    configure(strict, model, *command)
    assert strict.agent("notify", "accept", "--yes") == 0
    plant(strict, model, "scripts/notify.sh", r": > OUT\n")

    assert run_approved(strict) == 0

    assert not has_escaped(strict)
    assert (strict.folder.parent / "told").exists(), "the accepted script did not run"


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "scripts/notify.sh"],
        ["awk", "-f", "scripts/notify.awk"],
        ["vim", "-S", "scripts/notify.vim"],
        ["env", "scripts/plain"],
    ],
)
def test_script_of_the_workspace_must_be_accepted_first(
    strict: Workspace, model: ModelServer, capsys: Capture, command: list[str]
) -> None:
    strict.write(command[-1], "x\n")
    configure(strict, model, *command)

    assert strict.agent("run", "Do it", "-q") == 2

    told = capsys.readouterr().err
    assert "are not accepted: scripts" in told
    assert "`agent notify accept`" in told
    assert model.received == []


def test_script_changed_after_acceptance_does_not_run(strict: Workspace, model: ModelServer, capsys: Capture) -> None:
    configure(strict, model, "scripts/notify.sh")
    (strict.folder / "scripts/notify.sh").chmod(0o755)
    assert strict.agent("notify", "accept", "--yes") == 0
    strict.write(".agent/policy.yaml", "rules:\n  - {tool: Write, allow: true}\n")
    text = f"#!/bin/sh\n: > {strict.folder.parent}/escaped\n"
    model.follow(calls("Write", path="scripts/notify.sh", content=text), says("Done."))

    assert strict.agent("run", "Do it", "-q") == 0

    assert "escaped" in (strict.folder / "scripts/notify.sh").read_text()
    assert not has_escaped(strict)
    capsys.readouterr()
    assert strict.agent("notify", "list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "open"
    assert "changed since you accepted them: scripts" in row["reason"]
    assert strict.agent("run", "Do it again", "-q") == 2


def test_script_changed_during_the_question_is_not_accepted(strict: Workspace, model: ModelServer) -> None:
    configure(strict, model, "sh", "scripts/notify.sh")
    with agent_terminal(strict.folder, "notify", "accept") as terminal:
        terminal.wait_for("Accept these files as they are?")
        strict.write("scripts/notify.sh", "another program\n")
        terminal.type("y\r")
        terminal.wait_for("The files changed while you were asked")
        assert terminal.wait_for_end() == 2

    assert strict.agent("run", "Do it", "-q") == 2
    assert model.received == []


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "tell.py"],
        ["sh", "tell"],
        ["timeout", "5", "sh", "tell"],
        ["make", "-C", "WORK"],
        ["sh", "-c", "cd $AGENT_PROJECT_DIR && git log"],
    ],
)
def test_command_that_can_run_any_workspace_file_is_rejected(
    strict: Workspace, model: ModelServer, capsys: Capture, command: list[str]
) -> None:
    strict.write("tell.py", "")
    strict.write("tell", "")
    configure(strict, model, *(word.replace("WORK", str(strict.folder)) for word in command))

    assert strict.agent("run", "Do it", "-q") == 2
    assert strict.agent("notify", "accept", "--yes") == 2

    assert "notify.command may run any code of the workspace" in capsys.readouterr().err


def test_command_without_workspace_files_needs_no_acceptance(
    strict: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    tool = tmp_path / "tools/tell.sh"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\npwd > {tmp_path}/told\necho $AGENT_PROJECT_DIR >> {tmp_path}/told\n")
    tool.chmod(0o755)
    configure(strict, model, str(tool))
    model.follow(says("Done."))

    assert strict.agent("run", "Do it", "-q") == 0
    assert strict.agent("notify", "accept", "--yes") == 0

    folder, project = (tmp_path / "told").read_text().splitlines()
    assert project == str(strict.folder)
    assert folder == str(Path.home())


def test_program_in_a_writable_folder_of_the_settings_is_not_found(
    strict: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    tools = strict.write("../home/.cargo/bin/notify-me", f"#!/bin/sh\n: > {strict.folder.parent}/escaped\n")
    tools.chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{tools.resolve().parent}")
    notify = {"command": ["notify-me"], "events": ["ended"]}
    runtime, sandbox = {**QUICK, "profile": "strict"}, {"writable": ["~/.cargo"]}
    strict.configure(model=use_model(model), runtime=runtime, notify=notify, sandbox=sandbox)
    model.follow(says("Done."))

    assert strict.agent("run", "Do it", "-q") == 0
    capsys.readouterr()

    assert not has_escaped(strict)
    assert strict.agent("notify", "list") == 0
    assert "'notify-me' of notify.command is not found outside of the workspace" in capsys.readouterr().out
