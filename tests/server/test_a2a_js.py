"""A2A through the official JavaScript client."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from node_programs import NODE, find_program, list_modules
from run_workspace import Workspace
from running_server import RunningServer, serving_process

CLIENT = Path(__file__).parent / "a2a_client.mjs"
COMPLETED, CANCELED, INPUT_REQUIRED, AUTH_REQUIRED = 3, 5, 6, 8
CAREFUL = "---\nname: Careful\ndescription: Asks first.\nprofile: guarded\n---\n\nAsk.\n"

pytestmark = pytest.mark.slow


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """The client script, next to its packages where Node finds them."""
    find_program("@a2a-js/sdk/package.json")
    (tmp_path / "js").mkdir()
    (tmp_path / "js/node_modules").symlink_to(list_modules())
    return Path(shutil.copy(CLIENT, tmp_path / "js/client.mjs"))


def call(client: Path, server: RunningServer, binding: str, *arguments: str, agent: str = "") -> list[dict[str, Any]]:
    url = f"{server.url}/a2a/{agent}" if agent else server.url
    command = [str(NODE), "--preserve-symlinks-main", str(client), url, server.token, binding, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_a_question_is_answered_and_the_result_arrives(
    binding: str, workspace: Workspace, model: ModelServer, server: RunningServer, client: Path
) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Painted it."))

    asked = call(client, server, binding, "send", "Paint it")
    task = asked[0]["id"]
    (waiting,) = call(client, server, binding, "get", task)
    subscribed = call(client, server, binding, "subscribe", task)
    answered = call(client, server, binding, "send", "blue", task)
    listed = call(client, server, binding, "list")
    (refused,) = call(client, server, binding, "cancel", task)

    assert asked[0]["kind"] == "task"
    assert asked[-1]["state"] == INPUT_REQUIRED
    assert (waiting["state"], waiting["asked"]) == (INPUT_REQUIRED, "Which colour?")
    assert [event["id"] for event in subscribed] == [task]
    assert answered[-1]["state"] == COMPLETED
    assert "Painted it." in [event.get("text") for event in answered]
    assert [each["id"] for each in listed] == [task]
    assert "NotCancelable" in refused["refused"]


def test_an_approval_is_auth_required_and_a_user_decides_it(
    workspace: Workspace, model: ModelServer, server: RunningServer, client: Path
) -> None:
    binding = "HTTP+JSON"
    workspace.write(".agent/agents/careful/AGENT.md", CAREFUL)
    model.follow(calls("Write", path="note.txt", content="x"), says("Written."))

    task = call(client, server, binding, "send", "Write it", agent="careful")[0]["id"]
    (waiting,) = call(client, server, binding, "get", task, agent="careful")
    (refused,) = call(client, server, binding, "send", "I approve it", task, agent="careful")
    approval = waiting["asked"].partition("approve ")[2].partition("`")[0]
    assert not (workspace.folder / "note.txt").exists()
    assert workspace.agent("approvals", "approve", approval) == 0
    followed = call(client, server, binding, "subscribe", task, agent="careful")
    (done,) = call(client, server, binding, "get", task, agent="careful")

    assert waiting["state"] == AUTH_REQUIRED
    assert "has no open question" in refused["message"]
    assert (done["state"], done["text"]) == (COMPLETED, "Written."), followed
    assert (workspace.folder / "note.txt").read_text() == "x"


def test_a_waiting_task_can_be_canceled(
    workspace: Workspace, model: ModelServer, server: RunningServer, client: Path
) -> None:
    binding = "JSONRPC"
    workspace.write(".agent/agents/careful/AGENT.md", CAREFUL)
    model.follow(calls("Write", path="note.txt", content="x"), says("Written."))

    task = call(client, server, binding, "send", "Write it", agent="careful")[0]["id"]
    (canceled,) = call(client, server, binding, "cancel", task, agent="careful")

    assert canceled["state"] == CANCELED
    assert not (workspace.folder / "note.txt").exists()


def test_a_task_survives_the_kill_of_its_server(workspace: Workspace, model: ModelServer, client: Path) -> None:
    binding = "JSONRPC"
    model.follow(calls("ask_user", question="Which colour?"), says("Painted it."))
    with serving_process(workspace.folder) as first:
        task = call(client, first.running, binding, "send", "Paint it")[0]["id"]
        first.process.kill()
        first.process.wait(100)

    with serving_process(workspace.folder) as second:
        (waiting,) = call(client, second.running, binding, "get", task)
        done = call(client, second.running, binding, "send", "blue", task)

    assert (waiting["state"], waiting["asked"]) == (INPUT_REQUIRED, "Which colour?")
    assert done[-1]["state"] == COMPLETED
