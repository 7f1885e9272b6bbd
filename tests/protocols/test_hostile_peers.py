"""Peers that flood, lie about IDs and do not read, against pipe servers. Only they get errors."""

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from acp_peer import Editor
from mcp_peer import TASKS, ProcessPeer, build_params
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

MAX_GROWTH_KB = 300_000
"""Memory that a flood may temporarily add to a process."""
MANY = 3_000
"""Requests that are ten times what the pipes of a process hold."""


def read_size(pid: int) -> int:
    """Return the memory of a process in kilobytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0])


def test_a_flooding_mcp_client_with_invalid_requests_gets_errors(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Still here."))

    with ProcessPeer(workspace.folder, capabilities=TASKS) as peer:
        huge = peer.request("tools/call", name="run", arguments={"task": "x" * 10_000_000})
        before = read_size(peer.process.pid)
        made_up = [
            peer.request("tasks/get", taskId=wrong) for wrong in ("", "../../etc/passwd", "0" * 4000, "é\x00", "a2a-1")
        ]
        for line in ("not json", "[]", "null", '{"jsonrpc": "2.0", "id": {}, "method": "tasks/get"}', '{"id": 1}'):
            assert peer.process.stdin is not None
            peer.process.stdin.write(f"{line}\n")
        last = peer.request("tools/list")
        grown = read_size(peer.process.pid) - before

    assert huge["error"]["code"] == -32602
    assert all("error" in answer for answer in made_up)
    assert [tool["name"] for tool in last["tools"]] == ["run", "run_result"]
    assert grown < MAX_GROWTH_KB
    assert model.received == []


def test_thousands_of_requests_on_an_unread_pipe_are_answered_later(workspace: Workspace, model: ModelServer) -> None:
    with ProcessPeer(workspace.folder, capabilities=TASKS) as peer:
        peer.request("tools/list")
        before = read_size(peer.process.pid)
        params = build_params({"taskId": "made up"}, TASKS)
        lines = (json.dumps({"jsonrpc": "2.0", "id": n, "method": "tasks/get", "params": params}) for n in range(MANY))
        is_written = threading.Event()

        def flood() -> None:
            assert peer.process.stdin is not None
            for line in lines:
                peer.process.stdin.write(f"{line}\n")
            peer.process.stdin.flush()
            is_written.set()

        writer = threading.Thread(target=flood)
        writer.start()
        # The pipes are full before all of it is taken: the server does not read what it cannot answer.
        assert not is_written.wait(1)
        grown = read_size(peer.process.pid) - before
        answers = [peer.read() for _ in range(MANY)]
        writer.join(60)
        last = peer.request("tools/list")

    assert {answer["error"]["code"] for answer in answers} == {-32602}
    assert sorted(answer["id"] for answer in answers) == list(range(MANY))
    assert "tools" in last
    assert grown < MAX_GROWTH_KB


@pytest.mark.slow
def test_an_editor_that_does_not_read_is_disconnected_and_its_run_is_kept(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), says("Written."))

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        editor.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Write a.txt"}])
        editor.wait_until(lambda: bool(editor.asked))
        with editor.reading_stopped(), suppress(BrokenPipeError):
            for _ in range(100_000):
                editor.send("session/set_mode", sessionId="made up" * 500, modeId="strict")
        code = editor.process.wait(200)

    assert code == 0
    assert workspace.agent("approvals", "list") == 0
    assert not (workspace.folder / "a.txt").exists()
    (run_id,) = workspace.run_ids()
    assert workspace.events(run_id)[-1]["event_type"] in ("approval_requested", "run_paused", "task_state_changed")


def test_a_session_of_one_folder_cannot_be_loaded_into_another(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    model.follow(says("Here."))
    other = Workspace(tmp_path / "other")
    other.folder.mkdir()
    other.configure(model=use_model(model), runtime=QUICK)

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        editor.prompt(session, "Stay here")
        loaded = editor.request("session/load", cwd=str(other.folder), sessionId=session, mcpServers=[])
        listed = editor.request("session/list", cwd=str(other.folder))

    assert "error" in loaded
    assert listed["sessions"] == []


def test_an_mcp_client_cannot_extend_the_permissions_of_a_run(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    wishes = [{"profile": "permissive"}, {"model": "other/model"}, {"workspace": "/"}, {"agent": "../../other"}]

    with ProcessPeer(workspace.folder, capabilities=TASKS) as peer:
        for more in wishes:
            answer = peer.request("tools/call", name="run", arguments={"task": "Write a file", **more})

            assert "error" in answer or answer.get("isError"), more
    assert model.received == []


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "a \ud800 b"},
        {"type": "text", "text": "/remember \ud800: x"},
        {"type": "resource_link", "uri": "http://[", "name": "x"},
        {"type": "resource", "resource": {"uri": "file://[/a", "text": "\udfff"}},
    ],
)
def test_an_unencodable_prompt_does_not_end_the_sessions_of_the_editor(
    block: dict[str, object], workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Still here."))

    with Editor(workspace.folder) as editor:
        session = editor.begin()
        answer = editor.request("session/prompt", sessionId=session, prompt=[block])
        listed = editor.request("session/list", cwd=str(workspace.folder))

    assert answer.get("stopReason") == "end_turn"
    assert "sessions" in listed


def test_a_canceled_dialog_approves_nothing_despite_its_other_fields(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="new"), says("Done."))
    cancelled = {"outcome": {"outcome": "cancelled", "optionId": "allow"}}

    with Editor(workspace.folder, answer=lambda _: cancelled) as editor:
        editor.prompt(editor.begin(), "Write it")

    assert len(editor.asked) == 1
    assert not (workspace.folder / "a.txt").exists()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("echo \x1b]0; touch a #\x07", "echo \\x1b]0; touch a #\\x07"),
        ("touch a\u202eb", "touch a\\u202eb"),
        (f"TOKEN=ghp_{'0aA' * 12};touch a", "TOKEN=***REDACTED***;touch a"),
    ],
)
def test_an_editor_dialog_shows_everything_that_would_run(
    workspace: Workspace, model: ModelServer, command: str, shown: str
) -> None:
    model.follow(calls("Bash", command=command), says("Done."))
    cancelled = {"outcome": {"outcome": "cancelled"}}

    with Editor(workspace.folder, answer=lambda _: cancelled) as editor:
        editor.prompt(editor.begin(), "Run it")

    (asked,) = editor.asked
    assert asked["params"]["toolCall"]["rawInput"]["command"] == shown


def test_an_editor_gets_no_control_or_bidi_characters_in_messages(workspace: Workspace, model: ModelServer) -> None:
    family = "\U0001f468\u200d\U0001f469"
    model.follow(says(f"hi \x1b]0;title\x07\x1b[2J\u202e {family} end"))

    with Editor(workspace.folder) as editor:
        editor.prompt(editor.begin(), "Say hi")

    said = editor.get_said()
    assert not set(said) & set("\x1b\x07\u202e")
    assert said.count("end") == 1
    assert family in said
