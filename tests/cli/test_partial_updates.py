"""Text and output that are still arriving: in JSON events, and in the terminal of a user who watches a detached run."""

import json
import os
from typing import Any, cast

import pytest
from chat_pty import agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

SECRET = "tok-4f9a81c27be35d60"


def read_lines(capsys: Capture) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", json.loads(line)) for line in capsys.readouterr().out.splitlines()]


def list_partials(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("type") == "partial" and line["kind"] == kind]


def test_json_events_carry_text_and_output_as_they_arrive(
    workspace: Workspace, model: ModelServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", SECRET)
    workspace.write("show.sh", f"echo one {SECRET}\necho two\nsleep 0.3\n")
    model.follow(calls("Bash", command="sh show.sh"), says(f"It printed two lines and {SECRET}, no more."))

    assert workspace.agent("run", "Go", "--output-format", "stream-json", "--include-partial", "-q") == 0

    lines = read_lines(capsys)
    text = list_partials(lines, "text")
    assert "".join(line["text"] for line in text) == "It printed two lines and ***REDACTED***, no more."
    assert {(line["run_id"], line["turn"]) for line in text} == {(workspace.run_ids()[0], 2)}
    output = list_partials(lines, "output")
    assert "".join(line["text"] for line in output) == "one ***REDACTED***\ntwo\n"
    assert {line["step_id"] for line in output} == {"1.1"}
    sent = [number for number, line in enumerate(lines) if line.get("event_type") == "llm_request_sent"]
    received = [number for number, line in enumerate(lines) if line.get("event_type") == "llm_response_received"]
    assert sent[1] < lines.index(text[0]) <= lines.index(text[-1]) < received[1]


def test_json_events_have_no_partial_updates_unless_asked_for(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    assert workspace.agent("run", "Go", "--output-format", "stream-json", "-q") == 0
    assert list_partials(read_lines(capsys), "text") == []
    assert workspace.agent("run", "Go", "--include-partial") == 2
    assert "--include-partial needs" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["watch", "attach"])
def test_a_detached_run_streams_text(
    workspace: Workspace, model: ModelServer, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")
    story = "There once was a folder.\n\nIt was full of notes, and each of them said something else.\n"
    model.follow(says(story))
    model.halting.set()
    assert workspace.agent("run", "Tell", "--detach") == 0
    (run_id,) = workspace.run_ids()
    worker = workspace.start("worker", "--once")
    with agent_terminal(workspace.folder, "runs", command, run_id) as terminal:
        terminal.wait_for("There once was a folder.")
        assert (workspace.folder / "runs" / run_id / "partial.jsonl").stat().st_mode & 0o077 == 0
        model.halting.clear()
        model.released.set()
        terminal.wait_for("said something else.")
        assert terminal.wait_for_end() == 0
    worker.communicate(timeout=120)
    assert worker.returncode == 0
    assert not (workspace.folder / "runs" / run_id / "partial.jsonl").exists()


@pytest.mark.slow
def test_a_detached_run_streams_output_of_a_running_command(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")
    os.mkfifo(workspace.folder / "gate")
    gate = os.open(workspace.folder / "gate", os.O_RDWR)
    workspace.write("build.sh", "echo compiling everything\nhead -c1 gate >gate.seen\n")
    model.follow(calls("Bash", command="sh build.sh"), says("Built it, and nothing else."))
    assert workspace.agent("run", "Build", "--detach") == 0
    (run_id,) = workspace.run_ids()
    worker = workspace.start("worker", "--once")
    with agent_terminal(workspace.folder, "runs", "watch", run_id) as terminal:
        terminal.wait_for("compiling everything")
        os.write(gate, b"x")
        shown = terminal.wait_for("Built it, and nothing else.")
        assert "✓ Bash" in shown
        assert terminal.wait_for_end() == 0
    os.close(gate)
    worker.communicate(timeout=120)
    assert worker.returncode == 0
