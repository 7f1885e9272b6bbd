"""`agent --server URL`: the same commands against a server, found by its token file."""

import io
import json
from threading import Thread

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace
from running_server import WAIT_SECONDS, RunningServer, serving_process

from metier.cli.shared import server_client
from metier.settings.running_server import write_token


@pytest.fixture
def remote(server: RunningServer) -> RunningServer:
    """A server like started by `agent serve`: its token is in the home folder."""
    assert server.config is not None
    write_token(server.config.private, server.token)
    return server


def test_a_task_is_sent_to_a_server_and_its_answer_is_printed(
    workspace: Workspace, remote: RunningServer, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("use_skill", skill="greeter", reason="fits"), says("Hello there."))

    code = workspace.agent("--server", remote.url, "run", "greet me")

    told = capsys.readouterr()
    assert (code, told.out) == (0, "Hello there.\n")
    assert "completed" in told.err


def test_a_remote_run_prints_the_object_of_a_local_one(
    workspace: Workspace, remote: RunningServer, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(says("Hello."))
    assert workspace.agent("--server", remote.url, "run", "greet me", "--json", "--quiet") == 0
    far = json.loads(capsys.readouterr().out)
    assert workspace.agent("run", "greet me", "--json", "--quiet") == 0
    near = json.loads(capsys.readouterr().out)

    assert near.keys() <= far.keys()
    same = ("status", "exit_code", "result", "reason", "turns", "usage")
    assert {name: far[name] for name in same} == {name: near[name] for name in same}


def test_an_approval_is_listed_and_decided_remotely(
    workspace: Workspace, remote: RunningServer, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("Write", path="note.txt", content="hi\n"), says("Written."))
    assert workspace.agent("--server", remote.url, "run", "write", "--profile", "guarded", "--quiet") == 3
    said = capsys.readouterr().err
    approval = next(line.split()[-1] for line in said.splitlines() if line.startswith("next:"))

    assert workspace.agent("--server", remote.url, "approvals", "approve", approval) == 0
    assert workspace.agent("--server", remote.url, "runs", "watch", "latest") == 0
    assert workspace.agent("--server", remote.url, "approvals", "deny", approval) == 10

    assert (workspace.folder / "note.txt").read_text() == "hi\n"
    assert "was already approved by 'tester'" in capsys.readouterr().err


def test_a_chat_with_a_server_remembers_earlier_messages(
    workspace: Workspace,
    remote: RunningServer,
    model: ModelServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.follow(says("Hello Ann."), says("You are Ann."))
    monkeypatch.setattr("sys.stdin", io.StringIO("I am Ann.\nWho am I?\n"))

    assert workspace.agent("--server", remote.url, "chat", "--context", "tea", "--quiet") == 0

    assert capsys.readouterr().out == "Hello Ann.\nYou are Ann.\n"


def test_commands_print_the_same_for_a_server_and_for_its_workspace(
    workspace: Workspace, remote: RunningServer, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("Write", path="note.txt", content="hi\n"), says("Done."))
    workspace.write(".agent/tasks/tidy/TASK.md", "---\nname: Tidy up\ndescription: Tidies.\n---\n\nTidy.\n")
    assert workspace.agent("--server", remote.url, "run", "greet me", "--quiet", "--profile", "guarded") == 3
    said = capsys.readouterr().err
    approval = next(line.split()[-1] for line in said.splitlines() if line.startswith("next:"))

    commands = (
        ("runs", "list"), ("runs", "list", "--json"), ("approvals", "list"), ("approvals", "show", approval),
        ("approvals", "show", approval, "--json"), ("approvals", "show", "latest"), ("task", "list"),
        ("task", "show", "tidy"), ("runs", "list", "--status", "completed"), ("runs", "show", "20990101"),
    )  # fmt: skip
    for command in commands:
        far_code, far = workspace.agent("--server", remote.url, *command), capsys.readouterr()
        near_code, near = workspace.agent(*command), capsys.readouterr()
        assert (far_code, far.out, far.err) == (near_code, near.out, near.err), command

    workspace.agent(f"--server={remote.url}", "runs", "show", "latest")
    far_lines = capsys.readouterr().out.splitlines()
    workspace.agent("runs", "show", "latest")
    near_lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("folder:")]
    assert [line.replace(f"agent --server {remote.url}", "agent") for line in far_lines] == near_lines


def test_a_run_on_a_server_is_answered_and_resumed(
    workspace: Workspace, remote: RunningServer, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {"question": "Which color?", "fields": {"color": "Any color"}}
    model.follow(calls("ask_user", **question), says("Painted."))
    assert workspace.agent("--server", remote.url, "run", "paint it", "--quiet") == 4
    assert f"agent --server {remote.url} resume" in capsys.readouterr().err

    assert workspace.agent("--server", remote.url, "resume", "latest", "--input", "color=red", "--quiet") == 0

    assert capsys.readouterr().out == "Painted.\n"


def test_local_commands_and_options_are_rejected(
    workspace: Workspace, remote: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workspace.agent("--server", remote.url, "skills", "list") == 2
    rejected = capsys.readouterr().err
    assert "does not run on a server" in rejected
    assert "approvals show, approve, deny, chat" in rejected
    assert workspace.agent("--server", remote.url, "run", "greet me", "--image", "picture.png") == 2
    assert "No such option: --image" in capsys.readouterr().err


@pytest.mark.slow
def test_server_that_dies_during_a_run_is_reported_with_a_way_to_continue(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_client, "MAX_OUTAGE_SECONDS", 0.0)
    model.follow(says("Never sent."))
    model.silent.set()
    with serving_process(workspace.folder) as served:

        def kill_when_asked() -> None:
            assert model.asked.wait(WAIT_SECONDS)
            served.process.kill()

        killer = Thread(target=kill_when_asked)
        killer.start()
        code = workspace.agent("--server", served.running.url, "run", "greet me")
        killer.join()
    model.silent.clear()
    model.released.set()

    error, hint = capsys.readouterr().err.splitlines()[-2:]
    (run_id,) = workspace.run_ids()
    assert code == 1
    assert error.startswith(f"error: The server at '{served.running.url}' stopped answering during run '{run_id}'")
    assert hint == f"hint: Once it is back, run `agent --server {served.running.url} runs watch {run_id}`"


def test_unreachable_servers_and_missing_tokens_are_reported(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workspace.agent("--server", "http://127.0.0.1:9", "runs", "list") == 2
    assert "There is no token" in capsys.readouterr().err
    monkeypatch.setenv("AGENT_SERVER_TOKEN", "some-token")
    assert workspace.agent("--server", "http://127.0.0.1:9", "runs", "list") == 1
    assert "does not answer" in capsys.readouterr().err
    assert workspace.agent("--server", "nonsense", "runs", "list") == 2
    assert workspace.agent("--server") == 2
