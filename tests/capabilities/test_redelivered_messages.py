"""A message with a resume token, delivered again after its worker process was killed, on both stores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from capability_skills import write_skill
from pydantic import JsonValue
from test_adapter import ASKS, detail, open_adapter

from metier.capabilities.protocol import TaskState
from metier.store.failures import ResumeTokenRefused

WAITER = """
def execute(context):
    if "name" not in context.inputs:
        return {"state": "input_required", "input_request": {"message": "Who?", "missing_fields": [{"name": "name"}]}}
    with open(context.workspace / "gate") as gate:
        return {"outputs": {"text": context.inputs["name"] + gate.read(), "turn": context.turn}}
"""
WRITES = "autonomy_level: implement\nside_effects: {kinds: [writes_files], repeat: %s}\n"
WORKER = """
import json, sys
from metier import create_agent_adapter, create_executor
work = json.load(sys.stdin)
adapter = create_agent_adapter(create_executor(work["folder"]), routes=work["routes"])
adapter.invoke(work["skill"], work["inputs"], "ctx", resume_token=work["token"], message_id=work["message"])
"""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace whose conversations are in one of the stores."""
    monkeypatch.setenv("STATE_STORE_BACKEND", request.param)
    if request.param == "postgres":
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    return workspace


def kill_worker_in_turn(
    folder: Path, token: str, *, message: str = "m2", skill: str = "waiter", inputs: dict[str, JsonValue] | None = None
) -> None:
    """Let a worker process start the turn, then end it with SIGKILL."""
    work = {"folder": str(folder), "token": token, "message": message, "skill": skill, "routes": skill != "waiter"}
    gate = folder / "gate"
    os.mkfifo(gate)
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({**work, "inputs": {"name": "a"} if inputs is None else inputs}))
        process.stdin.close()
        with gate.open("w"):  # returns when the skill reads: its turn is on record
            process.kill()
            process.wait()
    gate.unlink()
    gate.write_text("!", encoding="utf-8")


@pytest.mark.parametrize("contract", ["", WRITES % "keyed"])
def test_redelivered_message_with_a_redeemed_token_repeats_a_repeatable_turn(store: Path, contract: str) -> None:
    write_skill(store / "skills", "waiter", contract=contract + ASKS, impl=WAITER)
    adapter = open_adapter(store)
    token = adapter.invoke("waiter", {"count": 1}, "ctx", message_id="m1").metadata.resume_token
    kill_worker_in_turn(store, token)

    again = adapter.invoke("waiter", {"name": "a"}, "ctx", resume_token=token, message_id="m2")
    third = adapter.invoke("waiter", {"name": "a"}, "ctx", resume_token=token, message_id="m2")

    assert (again.state, again.outputs) == (TaskState.COMPLETED, {"text": "a!", "turn": 2})
    assert (third.outputs, third.metadata.replayed) == (again.outputs, True)


def test_redelivered_message_whose_turn_may_not_repeat_reports_an_unknown_outcome(store: Path) -> None:
    write_skill(store / "skills", "waiter", contract=WRITES % "opaque" + ASKS, impl=WAITER)
    adapter = open_adapter(store)
    token = adapter.invoke("waiter", {"count": 1}, "ctx", message_id="m1").metadata.resume_token
    kill_worker_in_turn(store, token)

    again = adapter.invoke("waiter", {"name": "a"}, "ctx", resume_token=token, message_id="m2")

    assert detail(again) == ("escalated", "in_doubt")
    assert again.message == "Turn 2 was started, and its outcome is unknown"


def test_token_that_a_killed_worker_redeemed_is_refused_for_any_other_message(store: Path) -> None:
    write_skill(store / "skills", "waiter", contract=ASKS, impl=WAITER)
    adapter = open_adapter(store)
    token = adapter.invoke("waiter", {"count": 1}, "ctx", message_id="m1").metadata.resume_token
    kill_worker_in_turn(store, token)

    for other in ("m3", ""):
        with pytest.raises(ResumeTokenRefused):
            adapter.invoke("waiter", {"name": "b"}, "ctx", resume_token=token, message_id=other)
    with pytest.raises(ResumeTokenRefused):
        adapter.invoke("waiter", {"name": "b"}, "ctx", resume_token=token[:-1], message_id="m2")
    assert adapter.invoke("waiter", {"name": "a"}, "ctx", resume_token=token, message_id="m2").outputs["turn"] == 2


def test_redelivered_message_is_rejected_after_another_message_took_its_turn(workspace: Path) -> None:
    write_skill(workspace / "skills", "waiter", contract=ASKS, impl=WAITER)
    adapter = open_adapter(workspace)
    token = adapter.invoke("waiter", {"count": 1}, "ctx", message_id="m1").metadata.resume_token
    kill_worker_in_turn(workspace, token)

    assert adapter.invoke("waiter", {"name": "b"}, "ctx", resume=True, message_id="m3").outputs["text"] == "b!"

    with pytest.raises(ResumeTokenRefused):
        adapter.invoke("waiter", {"name": "a"}, "ctx", resume_token=token, message_id="m2")


@pytest.mark.parametrize("message", ["m2", ""])
def test_call_with_the_wrong_skill_does_not_redeem_the_token(workspace: Path, message: str) -> None:
    write_skill(workspace / "skills", "waiter", contract=ASKS, impl=WAITER)
    write_skill(workspace / "skills", "other", contract=ASKS, impl=WAITER)
    (workspace / "gate").write_text("!", encoding="utf-8")
    adapter = open_adapter(workspace)
    token = adapter.invoke("waiter", {"count": 1}, "ctx").metadata.resume_token

    wrong = adapter.invoke("other", {"name": "a"}, "ctx", resume_token=token, message_id=message and "m1")
    right = adapter.invoke("waiter", {"name": "a"}, "ctx", resume_token=token, message_id=message)

    assert detail(wrong) == ("blocked", "other_skill")
    assert right.outputs == {"text": "a!", "turn": 2}


def test_redelivered_message_continues_the_child_that_its_killed_worker_started(workspace: Path) -> None:
    parent = """
def execute(context):
    if context.turn == 1:
        return {"state": "input_required", "input_request": {"missing_fields": [{"name": "name"}]}}
    if context.delegated is None:
        return {"state": "delegating", "delegation": {"skill": "waiter", "inputs": {"name": context.inputs["name"]}}}
    return {"outputs": {"got": context.delegated["outputs"]["text"]}}
"""
    contract = "interaction_outcomes:\n  allowed_intermediate_states: [input_required, delegating]\n"
    write_skill(workspace / "skills", "parent", contract=contract + "depends_on: [waiter]", impl=parent)
    write_skill(workspace / "skills", "waiter", impl=WAITER)
    adapter = open_adapter(workspace, routes=True)
    token = adapter.invoke("parent", {}, "ctx", message_id="m1").metadata.resume_token
    kill_worker_in_turn(workspace, token, skill="parent")

    again = adapter.invoke("parent", {"name": "a"}, "ctx", resume_token=token, message_id="m2")

    assert (again.state, again.outputs) == (TaskState.COMPLETED, {"got": "a!"})
