"""Files of a run are passed on: a secret that came into a run stands in none of them, whoever said it."""

import json
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

SECRET = "".join(("pl4nted", "K3yZx9", "Qw7Rt5Yu3"))


def test_no_file_for_people_holds_a_secret_that_a_person_a_model_or_a_tool_said(
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
