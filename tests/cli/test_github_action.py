"""The composite action: its scripts run like in a workflow, against the command and a local API."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from agent_command import AGENT

ACTION = Path(__file__).resolve().parents[2] / "integrations/github-action"
OUTPUT = re.compile(r"(?P<name>[\w-]+)<<(?P<mark>\w+)\n(?P<value>.*?)\n(?P=mark)\n", re.DOTALL)


def run_script(name: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(AGENT.parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, ACTION / name], cwd=folder, env={**os.environ, "PATH": path, **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def read_outputs(file: Path) -> dict[str, str]:
    return {found["name"]: found["value"] for found in OUTPUT.finditer(file.read_text())}


def test_task_runs_and_its_run_can_be_imported_and_replayed(
    workspace: Workspace, model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, page = tmp_path / "outputs", tmp_path / "page.md"
    model.follow(calls("Glob", pattern="*.md"), says("Found\nexit-code<<x\n0\nx"))
    hostile = '--help "; touch owned; $(touch owned)'

    done = run_script(
        "run_task.py", workspace.folder, INPUT_TASK=hostile, INPUT_PROFILE="guarded", INPUT_MAX_TURNS="5",
        INPUT_ON_LIMIT="park", GITHUB_OUTPUT=str(outputs), GITHUB_STEP_SUMMARY=str(page), GITHUB_ACTIONS="true",
        RUNNER_TEMP=str(tmp_path),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = read_outputs(outputs)
    assert (found["status"], found["exit-code"]) == ("completed", "0")
    assert found["result"] == "Found\nexit-code<<x\n0\nx"
    assert "::group::Turn 1" in done.stderr
    assert page.read_text().strip() == Path(found["summary"]).read_text().strip()
    assert Path(found["junit"]).is_file()
    assert not (workspace.folder / "owned").exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert workspace.agent("runs", "import", found["archive"]) == 0
    assert workspace.agent("replay", found["run-id"], "--execute") == 0


def test_paused_run_has_outputs(workspace: Workspace, model: ModelServer, tmp_path: Path) -> None:
    model.follow(calls("Write", path="a", content="b"), says("Done"))

    done = run_script(
        "run_task.py", workspace.folder, INPUT_TASK="Write", INPUT_PROFILE="guarded",
        GITHUB_OUTPUT=str(tmp_path / "outputs"),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = read_outputs(tmp_path / "outputs")
    assert (found["status"], found["exit-code"]) == ("paused", "3")


def test_invalid_inputs_end_the_step(workspace: Workspace) -> None:
    done = run_script("run_task.py", workspace.folder, INPUT_TASK="", INPUT_TASK_ID="")

    assert done.returncode == 1
    assert "either `task` or `task-id`" in done.stderr


def test_inputs_reach_the_scripts_as_variables_and_every_one_is_read() -> None:
    action = cast("dict[str, Any]", yaml.safe_load((ACTION / "action.yml").read_text()))
    script = (ACTION / "run_task.py").read_text()

    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    (run,) = [step for step in action["runs"]["steps"] if step.get("id") == "run"]
    for name in run["env"]:
        assert name in script
    used = json.dumps(action["runs"])
    assert [name for name in action["inputs"] if f"inputs.{name}" not in used] == []
    assert [each["value"] for each in action["outputs"].values() if "steps.run.outputs." not in each["value"]] == []


@contextmanager
def issues_api(comments: list[dict[str, Any]]) -> Generator[tuple[str, list[tuple[str, str, str]]]]:
    asked: list[tuple[str, str, str]] = []

    class Door(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            asked.append((self.command, self.path, body))
            data = json.dumps(comments if self.command == "GET" else {"id": 7}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def comment(tmp_path: Path, api: str, *, event: object) -> subprocess.CompletedProcess[str]:
    (tmp_path / "event.json").write_text(json.dumps(event))
    (tmp_path / "summary.md").write_text("## Done\n\nAsk @everyone")
    return run_script(
        "comment.py", tmp_path, GITHUB_API_URL=api, GITHUB_REPOSITORY="a/b", GITHUB_TOKEN="t", COMMENT_KEY="review",
        GITHUB_EVENT_PATH=str(tmp_path / "event.json"), SUMMARY=str(tmp_path / "summary.md"),
    )  # fmt: skip


def test_summary_comment_is_created_once_and_replaced_by_the_next_run(tmp_path: Path) -> None:
    comments: list[dict[str, Any]] = [{"id": 1, "body": "hello"}]
    with issues_api(comments) as (api, asked):
        assert comment(tmp_path, api, event={"pull_request": {"number": 5}}).returncode == 0
        method, path, body = asked[-1]
        assert (method, path) == ("POST", "/repos/a/b/issues/5/comments")
        text = json.loads(body)["body"]
        assert "## Done" in text
        assert "@everyone" not in text

        comments.append({"id": 7, "body": text})
        assert comment(tmp_path, api, event={"pull_request": {"number": 5}}).returncode == 0
        assert asked[-1][:2] == ("PATCH", "/repos/a/b/issues/comments/7")

        count = len(asked)
        assert comment(tmp_path, api, event={"ref": "main"}).returncode == 0
        assert len(asked) == count
