"""A2A through the official JavaScript client, which is not a package of Python: run where a folder has it.

npm install --prefix FOLDER @a2a-js/sdk@1.3.0
METIER_A2A_JS=FOLDER pytest tests/server/test_a2a_js.py
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace
from running_server import RunningServer

FOLDER = os.environ.get("METIER_A2A_JS", "")
CLIENT = Path(__file__).parent / "a2a_client.mjs"
COMPLETED, CANCELED, INPUT_REQUIRED, AUTH_REQUIRED = 3, 5, 6, 8
CAREFUL = "---\nname: Careful\ndescription: Asks first.\nprofile: guarded\n---\n\nAsk.\n"

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="METIER_A2A_JS names no folder with @a2a-js/sdk"),
    pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"]),
]


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """Beside its packages, where Node looks for them."""
    (tmp_path / "js").mkdir()
    (tmp_path / "js/node_modules").symlink_to(Path(FOLDER) / "node_modules")
    return Path(shutil.copy(CLIENT, tmp_path / "js/client.mjs"))


def call(client: Path, url: str, *arguments: str) -> list[dict[str, Any]]:
    command = ["node", "--preserve-symlinks-main", str(client), url, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_question_is_answered_and_the_result_arrives(
    binding: str, workspace: Workspace, model: ModelServer, server: RunningServer, client: Path
) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Painted it."))

    events = call(client, server.url, server.token, binding, "Paint it", "blue")

    assert [event["state"] for event in events if event.get("kind") == "statusUpdate"] == [INPUT_REQUIRED, COMPLETED]
    assert {"kind": "artifactUpdate", "text": "Painted it."} in events
    assert events[-2]["listed"] == [events[-2]["id"]]
    assert "NotCancelable" in events[-1]["refused"]


def test_an_approval_is_auth_required_and_a_task_that_waits_is_canceled(
    binding: str, workspace: Workspace, model: ModelServer, server: RunningServer, client: Path
) -> None:
    workspace.write(".agent/agents/careful/AGENT.md", CAREFUL)
    model.follow(calls("Write", path="note.txt", content="x"), says("Written."))

    events = call(client, f"{server.url}/a2a/careful", server.token, binding, "Write it")

    assert [event["state"] for event in events if event.get("kind") == "statusUpdate"] == [AUTH_REQUIRED]
    assert events[-1] == {"canceled": CANCELED}
