"""A client that `openapi-python-client` generates from the document, against a running server."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documented_responses import list_operations
from model_server import ModelServer, says
from run_workspace import Workspace
from running_server import RunningServer
from test_api_runs import WRITE, wait_until

GENERATOR = Path(sys.prefix) / "servers/bin/openapi-python-client"
NAME = "generated_metier_client"
SKILL = """---
name: greeter
description: Greet a person kindly with a script.
entrypoint:
  script: greet
  args: []
---

# Greeter
"""

type Module = Any
"""Generated code, which a type checker can't see."""


@pytest.fixture
def generated(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What the generator printed. The package can be imported."""
    if not GENERATOR.is_file():
        pytest.skip(f"{GENERATOR.name} is not installed: `./dev test` does that")
    document, config, code = tmp_path / "openapi.json", tmp_path / "config.json", tmp_path / "code"
    document.write_text(json.dumps(server.get("/api/openapi.json")))
    # By default it formats the code with other programs.
    config.write_text(json.dumps({"post_hooks": [], "package_name_override": NAME}))
    code.mkdir()
    command = [
        str(GENERATOR), "generate", "--path", str(document), "--config", str(config), "--meta", "none",
        "--output-path", str(code / NAME),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    monkeypatch.setattr(sys, "path", [str(code), *sys.path])
    importlib.invalidate_caches()
    yield done.stdout
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


def load(name: str) -> Module:
    return importlib.import_module(f"{NAME}.{name}")


def connect(server: RunningServer) -> Module:
    client = load("client").AuthenticatedClient
    return client(base_url=server.url, token=server.token, httpx_args={"trust_env": False})


def test_generator_knows_every_operation_and_schema(generated: str, tmp_path: Path) -> None:
    operations = {file.stem for file in (tmp_path / "code" / NAME / "api").glob("*/*.py")} - {"__init__"}

    assert "warning" not in generated.lower(), generated
    assert operations == {operation.name for operation in list_operations()}


def test_a_generated_client_starts_reads_and_lists_runs(
    workspace: Workspace, server: RunningServer, generated: str
) -> None:
    workspace.write("skills/greeter/SKILL.md", SKILL)
    models = load("models")
    with connect(server) as client:
        body = models.StartRun(task="greet me", provider="offline")
        started = load("api.runs.start_run").sync(client=client, body=body, idempotency_key="one")
        again = load("api.runs.start_run").sync(client=client, body=body, idempotency_key="one")
        wait_until(server, started.run_id, "completed")
        found = load("api.runs.get_run").sync(client=client, run=started.run_id)
        view = load("api.runs.get_view").sync(client=client, run=started.run_id)
        listed = load("api.runs.list_runs").sync(client=client, status=[models.TaskState.COMPLETED])
        unknown = load("api.runs.get_run").sync(client=client, run="20990101-000000-abcdefabcdef")

    assert isinstance(started, models.RunItem)
    assert again.run_id == started.run_id
    assert isinstance(found, models.RunDetails)
    assert (found.status, found.exit_code, found.task) == (models.TaskState.COMPLETED, 0, "greet me")
    assert "hello from the script" in found.result
    assert found.created_at == started.created_at
    assert (view.run_id, view.status) == (started.run_id, "completed")
    assert [run.run_id for run in listed.items] == [started.run_id]
    assert isinstance(unknown, models.ProblemDocument)
    assert (unknown.status, unknown.code) == (404, "run_unknown")


def test_a_generated_client_approves_a_call(server: RunningServer, model: ModelServer, generated: str) -> None:
    model.follow(WRITE, says("Written."))
    models = load("models")
    with connect(server) as client:
        body = models.StartRun(task="write a note", profile=models.StartRunProfile.GUARDED)
        started = load("api.runs.start_run").sync(client=client, body=body)
        wait_until(server, started.run_id, "paused")
        (waiting,) = load("api.approvals.list_approvals").sync(client=client).items
        decided = load("api.approvals.approve").sync(
            client=client, approval=waiting.approval_id, body=models.Approval(hash_=waiting.hash_)
        )
        wait_until(server, started.run_id, "completed")
        found = load("api.runs.get_run").sync(client=client, run=started.run_id)
        steps = load("api.runs.get_view").sync(client=client, run=started.run_id).items

    assert (waiting.tool, waiting.arguments.to_dict()["path"]) == ("Write", "note.txt")
    assert isinstance(decided, models.ApprovalItem)
    assert (decided.status, decided.decided_by) == ("approved", "tester")
    assert (found.status, found.result) == ("completed", "Written.")
    assert any(isinstance(step, models.StepView) and step.tool == "Write" for step in steps)
