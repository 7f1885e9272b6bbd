"""Long replies and long arguments in the event log."""

import hashlib
import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

CONTENT = "".join(f"line {number} of a long file\n" for number in range(1000))
REPLY = "".join(f"Sentence {number} of a long reply. " for number in range(800)).strip()


def write_and_tell(workspace: Workspace, model: ModelServer) -> str:
    model.follow(calls("Write", path="long.txt", content=CONTENT), says(REPLY))
    assert workspace.agent("run", "Write it", "--profile", "permissive") == 0
    return (workspace.folder / "runs" / workspace.run_ids()[-1] / "events.jsonl").read_text(encoding="utf-8")


def test_the_event_log_records_size_and_hash_of_long_arguments_and_replies(
    workspace: Workspace, model: ModelServer
) -> None:
    log = write_and_tell(workspace, model)

    digest = hashlib.sha256(CONTENT.encode()).hexdigest()
    events = workspace.events()
    (started,) = [event["payload"] for event in events if event["event_type"] == "step_started"]
    arguments = started["arguments"]["arguments"]
    assert arguments["path"] == "long.txt"
    assert f"[{len(CONTENT)} characters, {len(CONTENT)} bytes, sha256 {digest}]" in arguments["content"]
    decided = [
        event["payload"]["planned_actions"][0] for event in events if event["event_type"] == "llm_decision_decoded"
    ]
    assert digest in decided[0]["params"]["arguments"]["content"]
    assert hashlib.sha256(REPLY.encode()).hexdigest() in decided[1]["params"]["result"]
    assert "line 500 of" not in log
    assert "Sentence 500 of" not in log
    assert max(len(line) for line in log.splitlines()) < 4_000


def test_the_journal_keeps_bodies_omitted_from_the_event_log(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_and_tell(workspace, model)
    capsys.readouterr()

    assert (workspace.folder / "long.txt").read_text(encoding="utf-8") == CONTENT
    assert workspace.agent("runs", "show", "latest", "--json") == 0
    assert json.loads(capsys.readouterr().out)["status"] == "completed"
    assert workspace.agent("replay", "latest") == 0


def test_the_log_contains_full_bodies_on_request(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK, logging={"debug_llm_bodies": True})

    log = write_and_tell(workspace, model)

    assert "line 500 of" in log
    assert "Sentence 500 of" in log


def test_a_pending_or_denied_call_is_logged_without_its_body(workspace: Workspace, model: ModelServer) -> None:
    outside = calls("Write", path="../../outside.txt", content=CONTENT)
    model.follow(outside, calls("Write", path="long.txt", content=CONTENT), says("Done."))

    assert workspace.agent("run", "Write it", "--profile", "strict") == 3

    log = [event for event in workspace.events() if event["event_type"] in ("approval_requested", "call_refused")]
    assert {event["event_type"] for event in log} == {"approval_requested", "call_refused"}
    assert all(len(json.dumps(event)) < 4_000 and "sha256" in json.dumps(event) for event in log)


def test_a_secret_in_a_long_argument_is_redacted_before_it_is_truncated_and_hashed(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The key lies across the place where the text is cut.
    key = "-".join(["correct", "horse", "battery", "staple", "correct", "horse"])
    monkeypatch.setenv("OPENAI_API_KEY", key)
    content = "x" * 180 + key + "y" * 3000
    model.follow(calls("Write", path="long.txt", content=content), says("Done."))

    workspace.agent("run", "Write it", "--profile", "permissive")

    # The hash of an artifact is that of its file, whatever it holds.
    log = json.dumps([event for event in workspace.events() if event["event_type"] != "artifact_written"])
    assert "correct-horse" not in log
    assert hashlib.sha256(content.encode()).hexdigest() not in log
