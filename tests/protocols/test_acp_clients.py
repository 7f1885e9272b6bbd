"""`agent acp` against third-party clients: the official TypeScript SDK and the headless client `acpx`."""

import base64
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from node_programs import NODE, find_program, list_modules
from pictures import build_png
from run_workspace import Workspace

from agent_command import AGENT

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parent / "editor_client.mjs"


def run_typescript_client(
    workspace: Workspace,
    tmp_path: Path,
    *arguments: str,
    picture: bytes = b"",
    buffers: dict[str, str] | None = None,
    load: str = "",
) -> dict[str, Any]:
    find_program("@agentclientprotocol/sdk/package.json")
    # Node looks for packages beside the file.
    script = shutil.copy(CLIENT, tmp_path / "client.mjs")
    if not (tmp_path / "node_modules").exists():
        (tmp_path / "node_modules").symlink_to(list_modules())
    done = subprocess.run(
        [NODE, script, AGENT, workspace.folder, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={
            **os.environ,
            "PICTURE": base64.b64encode(picture).decode(),
            "BUFFERS": json.dumps(buffers or {}),
            "LOAD": load,
        },
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_the_typescript_sdk_gets_a_plan_a_diff_a_form_and_usage(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    workspace.write("a.txt", "old\n")
    model.follow(
        calls("plan", steps=[{"step": "Write", "status": "in_progress"}]),
        calls("Read", path="a.txt"),
        calls("Write", path="a.txt", content="new\n"),
        calls("ask_user", question="Which colour?", fields={"colour": "text"}),
        says("All done."),
    )

    seen = run_typescript_client(workspace, tmp_path, "allow", "Do it")

    kinds = {update["sessionUpdate"] for update in seen["updates"]}
    assert {"plan", "tool_call", "tool_call_update", "usage_update", "agent_message_chunk"} <= kinds
    assert seen["permissions"][0][0]["newText"] == "new\n"
    assert (seen["stops"], seen["forms"], seen["version"]) == (["end_turn"], 1, 1)
    assert seen["modes"] == ["guarded", "strict"]
    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "new\n"


def test_the_typescript_sdk_sends_a_picture_and_saves_the_changed_buffer(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    file = workspace.write("a.txt", "old\n")
    model.follow(calls("Read", path="a.txt"), calls("Edit", path="a.txt", old="old", new="new"), says("A grey square."))
    picture = build_png(4, 4)

    seen = run_typescript_client(
        workspace, tmp_path, "allow", "What is this?", picture=picture, buffers={str(file): "old\nnot saved\n"}
    )

    assert seen["images"]
    assert base64.b64encode(picture).decode() in json.dumps(model.received[0])
    assert "not saved" in json.dumps(model.received[1])
    assert file.read_text(encoding="utf-8") == "new\nnot saved\n"


def test_the_typescript_sdk_loads_the_session_of_a_killed_agent_and_is_asked_again(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), says("All done."))

    killed = run_typescript_client(workspace, tmp_path, "kill", "Write a.txt")
    assert not (workspace.folder / "a.txt").exists()
    loaded = run_typescript_client(workspace, tmp_path, "allow", load=killed["session"])

    assert len(loaded["permissions"]) == 1
    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "x"
    assert len(model.received) == 2


def test_the_typescript_sdk_denies_a_call_and_cancels_a_turn(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    write = calls("Write", path="a.txt", content="x")
    model.follow(write, says("Then not."), write)

    denied = run_typescript_client(workspace, tmp_path, "reject", "Write a.txt")
    cancelled = run_typescript_client(workspace, tmp_path, "cancel", "Write a.txt")

    assert (denied["stops"], cancelled["stops"]) == (["end_turn"], ["cancelled"])
    assert "Rejected in the editor" in json.dumps(model.received[1])
    assert not (workspace.folder / "a.txt").exists()


AGENT_COMMAND = shlex.join([str(AGENT), "acp"])
"""acpx splits it like a shell; the path of the checkout may contain spaces."""


def use_acpx(workspace: Workspace, flag: str, task: str) -> list[str]:
    command = [*find_program("acpx/dist/cli.js"), "--agent", AGENT_COMMAND, "--cwd", str(workspace.folder), flag]
    return [*command, "--format", "json", "exec", task]


def read_messages(printed: str) -> list[dict[str, Any]]:
    """Return the protocol messages of `acpx`, one per line."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def find_stops(messages: list[dict[str, Any]]) -> list[str]:
    """Return the stop reasons of turns."""
    return [each["result"]["stopReason"] for each in messages if "stopReason" in (each.get("result") or {})]


@pytest.mark.parametrize(("flag", "is_written"), [("--approve-all", True), ("--deny-all", False)])
def test_acpx_gets_a_plan_and_a_diff_and_its_permissions_apply(
    workspace: Workspace, model: ModelServer, flag: str, is_written: bool
) -> None:
    plan = calls("plan", steps=[{"step": "Write a file", "status": "in_progress"}])
    model.follow(plan, calls("Write", path="a.txt", content="x"), says("That is all."))

    done = subprocess.run(use_acpx(workspace, flag, "Write a file"), capture_output=True, text=True, timeout=100)

    assert "That is all." in done.stdout, done.stderr
    assert (workspace.folder / "a.txt").exists() == is_written
    messages = read_messages(done.stdout)
    updates = [each["params"]["update"] for each in messages if each.get("method") == "session/update"]
    (step,) = next(each["entries"] for each in updates if each["sessionUpdate"] == "plan")
    assert (step["content"], step["status"]) == ("Write a file", "in_progress")
    asked = next(each["params"]["toolCall"] for each in messages if each.get("method") == "session/request_permission")
    diff = next(each for each in asked["content"] if each["type"] == "diff")
    assert (Path(diff["path"]).name, diff["newText"]) == ("a.txt", "x")
    assert any(each["sessionUpdate"] == "usage_update" for each in updates)
    assert find_stops(messages) == ["end_turn"]


def test_interrupted_acpx_cancels_the_turn(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), says("That is all."))
    model.silent.set()
    command = use_acpx(workspace, "--approve-all", "Write a file")
    acpx = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert model.asked.wait(60), "the turn is under way"
        acpx.send_signal(signal.SIGINT)
        printed, complained = acpx.communicate(timeout=60)
    finally:
        acpx.kill()
        acpx.wait(100)

    messages = read_messages(printed)
    assert "session/cancel" in [each.get("method") for each in messages], complained
    # It waits 2.5 s for the answer, which a busy machine may miss; another answer than this one never comes.
    assert find_stops(messages) in (["cancelled"], [])
    (run_id,) = workspace.run_ids()
    until = time.monotonic() + 100
    while workspace.event_types(run_id)[-1] != "run_paused":
        assert time.monotonic() < until, workspace.event_types(run_id)
        time.sleep(0.05)
    assert not (workspace.folder / "a.txt").exists()
    assert len(model.received) == 1
