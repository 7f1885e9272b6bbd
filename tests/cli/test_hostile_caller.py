"""Careless, disconnected and hostile callers: odd arguments, unread streams, a damaged store."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from chat_pty import CTRL_C, CTRL_D, agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from agent_command import AGENT

type Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("words", [[], ["runs"], ["task"], ["config"]])
def test_command_without_its_subcommand_shows_its_help_line_by_line(words: list[str], capsys: Capture) -> None:
    from metier.cli.main import run

    assert run(words) == 2

    shown = capsys.readouterr().err
    assert shown.startswith("Usage: agent")
    assert "\\n" not in shown
    assert ("\n  run " if not words else "\nCommands:\n") in shown


def _leave_after_one_line(workspace: Workspace, *args: str, watched: str) -> tuple[str, int]:
    """Read one line of a stream, close it, and return the exit code."""
    process = subprocess.Popen(
        [AGENT, *args], cwd=workspace.folder, env=os.environ, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE if watched == "stdout" else subprocess.DEVNULL,
        stderr=subprocess.PIPE if watched == "stderr" else subprocess.DEVNULL,
    )  # fmt: skip
    stream = process.stdout if watched == "stdout" else process.stderr
    assert stream is not None
    line = stream.readline()
    stream.close()
    return line, process.wait(timeout=120)


def test_run_continues_after_the_reader_of_its_events_leaves(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="one"), calls("Write", path="b.txt", content="two"), says("done"))

    line, exit_code = _leave_after_one_line(
        workspace, "run", "--events", "--profile", "permissive", "write two files", watched="stderr"
    )

    assert "Permissions: auto-approve" in line
    assert exit_code == 0
    assert (workspace.folder / "b.txt").read_text(encoding="utf-8") == "two"
    assert workspace.event_types()[-1] == "run_finished"


def test_closed_reader_is_distinguished_from_a_failure(workspace: Workspace, model: ModelServer) -> None:
    model.follow(*(calls("Read", path=f"{number}.txt") for number in range(40)), says("done"))
    workspace.agent("run", "-q", "--max-turns", "60", "read a lot")

    _, exit_code = _leave_after_one_line(workspace, "replay", "latest", "--json", watched="stdout")

    assert exit_code == 141


def test_task_that_is_not_valid_utf8_is_rejected(workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("run", "-q", "say \udcff\udcfe") == 2

    assert "error: The task is not UTF-8 text, at byte 4" in capsys.readouterr().err
    assert workspace.run_ids() == []


def test_task_is_decoded_in_a_locale_without_utf8(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("done"))
    process = workspace.start("run", "-q", "größe", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    assert process.communicate(timeout=120)[0] == "done\n"
    assert workspace.events()[0]["payload"]["task"] == "größe"


@pytest.mark.parametrize("command", [["runs", "show"], ["runs", "cancel"], ["resume"], ["replay"]])
def test_empty_name_matches_no_run(
    workspace: Workspace, model: ModelServer, command: list[str], capsys: Capture
) -> None:
    model.follow(calls("ask_user", question="Which?"))
    assert workspace.agent("run", "-q", "ask") == 4
    capsys.readouterr()

    assert workspace.agent(*command, "") == 2

    assert "error: There is no run ''" in capsys.readouterr().err
    assert "run_canceled" not in workspace.event_types()


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "list", "--limit", "99999999999999999999"],
        ["runs", "show", "\udcff"],
        ["policy", "backtest", "--runs", "99999999999999999999"],
        ["chat", "list", "--limit", "99999999999999999999"],
        ["runs", "gc", "--older-than", "1e300"],
        ["runs", "gc", "--older-than", "1000000000"],
        ["run", "--timeout", "nan", "x"],
        ["resume", "latest", "--timeout", "nan"],
        ["resume", "latest", "--timeout", "-1"],
        ["replay", "latest", "--fork-at", "4", "--provider", "nobody"],
    ],
)
def test_out_of_range_value_is_a_usage_error(
    workspace: Workspace, model: ModelServer, words: list[str], capsys: Capture
) -> None:
    model.follow(says("done"))
    workspace.agent("run", "-q", "x")
    capsys.readouterr()

    assert workspace.agent(*words) == 2

    assert "Unexpected" not in capsys.readouterr().err


def test_quiet_run_still_prints_why_it_waits(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("Write", path="a.txt", content="one"), says("done"))

    assert workspace.agent("run", "-q", "--profile", "guarded", "write") == 3

    told = capsys.readouterr().err
    assert re.search(r"^next:    agent approve ap-\w+$", told, re.MULTILINE)
    assert "run_started" not in told


def test_invalid_answer_is_rejected_without_effect(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    fields = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
        "required": ["colour"],
    }
    model.follow(calls("ask_user", question="Which colour?", fields=fields), says("thanks"))
    assert workspace.agent("run", "-q", "ask") == 4
    capsys.readouterr()

    assert workspace.agent("resume", "-q", "latest", "--input", "colour=green") == 2
    assert "'green' is not one of ['red', 'blue'] (at $.colour)" in capsys.readouterr().err
    assert workspace.agent("resume", "-q", "latest", "--input", "color=red") == 2
    assert "The run does not ask for 'color'" in capsys.readouterr().err
    assert workspace.agent("resume", "-q", "latest", "--input", "colour=red") == 0

    assert capsys.readouterr().out == "thanks\n"
    assert len(model.received) == 2


def test_list_of_runs_shows_the_model_that_answered(workspace: Workspace, capsys: Capture) -> None:
    workspace.agent("run", "-q", "--provider", "offline", "greet somebody")
    capsys.readouterr()

    workspace.agent("runs", "list", "--json")

    assert [row["model"] for row in json.loads(capsys.readouterr().out)] == ["offline"]


@pytest.mark.parametrize("pattern", [b"CREATE TABLE journal", b"find the needle", b"2026-03-01"])
@pytest.mark.parametrize("instead", [b"\xff", b"x"])
def test_damaged_store_is_reported_as_damaged(
    workspace: Workspace, model: ModelServer, pattern: bytes, instead: bytes, capsys: Capture
) -> None:
    model.follow(says("done"))
    workspace.agent("run", "-q", "find the needle")
    database = workspace.folder / "runs" / "state.db"
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE runs SET created_at = '2026-03-01T10:00:00+00:00'")
    connection.close()
    capsys.readouterr()
    data = database.read_bytes()
    assert pattern in data
    database.write_bytes(data.replace(pattern, instead * len(pattern)))

    is_readable = (pattern, instead) == (b"find the needle", b"x")
    assert workspace.agent("runs", "list") == (0 if is_readable else 1)

    shown = capsys.readouterr().err
    assert "Unexpected" not in shown
    assert is_readable or "back-up" in shown or "backup" in shown


@pytest.mark.parametrize("kept", [slice(3, None), slice(0, 3)], ids=["lost", "twice"])
def test_log_with_a_missing_or_duplicate_line_is_not_replayed(
    workspace: Workspace, model: ModelServer, kept: slice, capsys: Capture
) -> None:
    model.follow(says("done"))
    workspace.agent("run", "-q", "x")
    path = workspace.folder / "runs" / workspace.run_ids()[0] / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[kept]]))
    capsys.readouterr()

    assert workspace.agent("replay", "latest") == 1

    shown = capsys.readouterr().err
    assert "Line 3 of" in shown
    assert "`agent runs rebuild <run>`" in shown
    assert workspace.agent("runs", "rebuild", "latest") == 0
    assert workspace.agent("replay", "latest") == 0


def test_home_that_is_not_a_folder_has_no_installed_skills(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HOME", os.devnull)

    assert workspace.agent("skill", "list") == 0
    assert workspace.agent("run", "-q", "--provider", "offline", "greet somebody") == 1
    assert "(no_skill)" in capsys.readouterr().err


def test_approval_of_a_canceled_run_is_closed(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("Write", path="a.txt", content="one"), says("done"))
    workspace.agent("run", "-q", "--profile", "guarded", "write")
    workspace.agent("approvals", "list")
    approval = capsys.readouterr().out.split()[0]
    workspace.agent("runs", "cancel", "latest")
    capsys.readouterr()

    assert workspace.agent("approvals", "list") == 0
    assert capsys.readouterr().out == ""
    assert workspace.agent("approvals", "approve", approval) == 10
    assert not (workspace.folder / "a.txt").exists()


def can_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted here")
@pytest.mark.slow
def test_old_runs_can_be_listed_and_deleted_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = """
    mount -t tmpfs -o size=64m none "$1" && cd "$1"
    "$2" run -q --provider offline "do nothing" > /dev/null || true
    head -c 90000000 /dev/zero > filler || true
    "$2" runs list --json | grep -c '"run_id"'
    "$2" runs gc --keep 0
    """
    home = {**os.environ, "HOME": str(tmp_path)}
    command = ["unshare", "-m", "sh", "-ec", script, "sh", str(disk), str(AGENT)]

    done = subprocess.run(command, env=home, capture_output=True, text=True, check=False, timeout=240)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "1"
    assert "1 run was deleted" in done.stderr


@pytest.mark.parametrize("target", [".", "runs"])
def test_export_into_a_folder_is_refused(
    workspace: Workspace, model: ModelServer, target: str, capsys: Capture
) -> None:
    model.follow(says("done"))
    workspace.agent("run", "-q", "x")
    capsys.readouterr()

    assert workspace.agent("runs", "export", "latest", "-o", target) == 2

    assert f"error: '{target}' is a folder" in capsys.readouterr().err


def test_skill_added_after_the_start_is_not_used_by_the_run(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("ask_user", question="Which?"), says("done"))
    assert workspace.agent("run", "-q", "greet somebody") == 4
    workspace.add_skill("newcomer", "Greet somebody loudly and with a song.")

    assert workspace.agent("resume", "-q", "latest", "--input", "answer=1") == 0

    assert "newcomer" not in json.dumps(model.received)
    capsys.readouterr()
    assert workspace.agent("replay", "latest", "--execute") == 0, capsys.readouterr().out


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D])
def test_interrupting_the_question_returns_to_the_shell_at_once(
    workspace: Workspace, model: ModelServer, key: str
) -> None:
    model.follow(calls("Write", path="a.txt", content="one"), says("done"))

    with agent_terminal(workspace.folder, "run", "-q", "--profile", "guarded", "write") as terminal:
        terminal.wait_for("[?]: ")
        terminal.type(key)
        terminal.wait_for("next:    agent approve")
        exit_code = terminal.wait_for_end()

    assert exit_code == 3
    assert not (workspace.folder / "a.txt").exists()


def test_line_typed_early_answers_the_next_question(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="one"), says("done"))

    with agent_terminal(workspace.folder, "run", "-q", "--profile", "guarded", "write") as terminal:
        terminal.wait_for("[?]: ")
        terminal.type("who\ny\n")
        assert terminal.wait_for_end() == 0

    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "one"
