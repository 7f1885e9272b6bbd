"""Run files are shared: they contain no secret, whatever its source."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

SECRET = "".join(("pl4nted", "K3yZx9", "Qw7Rt5Yu3"))


def test_readable_run_files_contain_no_secret_from_user_model_or_tool(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    (workspace.folder / "notes.txt").write_text(f"the key is {SECRET}\n")
    model.follow(
        calls("Read", path="notes.txt"),
        calls("Bash", command=f"echo {SECRET}; cat notes.txt; exit 3"),
        calls("WebFetch", url=f"http://127.0.0.1/?k={SECRET}"),
        says(f"It is {SECRET}."),
    )

    assert workspace.agent("run", f"use {SECRET}", "--debug-llm", "-q") == 0

    capsys.readouterr()
    (run_id,) = workspace.run_ids()
    files = [path for path in (workspace.folder / "runs" / run_id).rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"events.jsonl", "run.json"}
    assert [path for path in files if SECRET in path.read_text(encoding="utf-8", errors="replace")] == []
    record = json.loads(Path(workspace.folder / "runs" / run_id / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "completed"
    assert [step["uses"] for step in record["steps"]] == ["Read", "Bash", "WebFetch"]


def read_record(workspace: Workspace, run_id: str) -> dict[str, Any]:
    return json.loads((workspace.folder / "runs" / run_id / "run.json").read_text(encoding="utf-8"))


def test_a_record_has_start_duration_and_written_files_of_the_run(workspace: Workspace, model: ModelServer) -> None:
    before = datetime.now(UTC)
    model.follow(
        calls("Write", path="notes/a.txt", content="one\n"),
        calls("Edit", path="notes/a.txt", old="one", new="two"),
        says("Done."),
    )

    assert workspace.agent("run", "Write it down", "-q") == 0

    record, finished = read_record(workspace, workspace.run_ids()[0]), workspace.events()[-1]["payload"]
    assert before <= datetime.fromisoformat(record["started_at"]) <= datetime.now(UTC)
    assert 0 < record["duration_ms"] == finished["duration_ms"] < (datetime.now(UTC) - before).total_seconds() * 1000
    assert record["task"] == {"text": "Write it down", "id": "", "step": "", "inputs": {}}
    file = str(workspace.folder / "notes" / "a.txt")
    written = [step["artifacts"] for step in record["steps"]]
    assert written == [
        [{"path": file, "sha256": sha256(text).hexdigest(), "bytes": 4}] for text in (b"one\n", b"two\n")
    ]
    assert workspace.event_types().count("artifact_written") == 2
    assert workspace.agent("replay", "latest", "--execute") == 0


def test_the_record_of_a_failed_or_paused_run_has_its_duration(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Glob", pattern="*"), calls("ask_user", question="Which?"))
    assert workspace.agent("run", "Look", "--max-turns", "1", "-q") == 7
    assert read_record(workspace, workspace.run_ids()[0])["duration_ms"] > 0
    assert workspace.events()[-1]["payload"]["duration_ms"] > 0

    assert workspace.agent("run", "Ask", "-q") == 4
    assert read_record(workspace, workspace.run_ids()[1])["duration_ms"] > 0


def test_the_record_of_a_task_names_the_task_and_its_inputs(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(
        ".agent/tasks/greet/TASK.md",
        "---\nname: Greeting\ninputs:\n  - name: who\n---\n\nGreet {{inputs.who}}.\n",
    )
    model.follow(says("Hello."))

    assert workspace.agent("task", "run", "greet", "--input", "who=Ada", "-q") == 0

    record = read_record(workspace, workspace.run_ids()[0])
    assert record["task"] == {"text": "Greeting", "id": "greet", "step": "", "inputs": {"who": "Ada"}}
    assert record["started_at"]
    assert record["duration_ms"] > 0
