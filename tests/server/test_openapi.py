"""Every route in the OpenAPI document, called with valid and invalid input, never returns 500."""

import os
import re
from contextlib import suppress
from typing import Any, cast

import pytest
import schemathesis
from documented_responses import list_operations
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from model_server import ModelServer, says
from run_workspace import Workspace
from running_server import RunningServer, serving
from schemathesis import GenerationMode
from test_api_runs import ASK, WRITE, start, wait_until
from test_security import configure_server

from metier.server.api.bodies import build_view_schemas

EXAMPLES = int(os.environ.get("METIER_OPENAPI_EXAMPLES", "3"))
"""Of each route, good and bad; more by hand."""

TASK = """---
name: Report
inputs:
  - name: topic
output_schema: {type: object, required: [words]}
---

Report on {{inputs.topic}}.
"""

type Operation = Any
"""Of a library without types."""


def call(server: RunningServer, operation: Operation, mode: GenerationMode) -> list[str]:
    """Call the route and return problems of the responses."""
    wrong: list[str] = []
    headers = {"Authorization": f"Bearer {server.token}"}

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call(base_url=server.url, headers=headers, timeout=30)
        kind = str(answer.headers.get("content-type", [""])[0])
        if answer.status_code >= 500:
            wrong.append(f"{operation.label}: {answer.status_code} {case.as_curl_command()} {answer.text[:300]}")
        elif answer.status_code >= 400 and kind != "application/problem+json":
            wrong.append(f"{operation.label}: {answer.status_code} is no problem document but {kind}")

    with suppress(Unsatisfiable):  # a route without parameters cannot be called wrongly
        check()
    return wrong


@pytest.mark.slow
def test_no_route_fails_on_arbitrary_input(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    configure_server(workspace, requests_per_minute=100_000)
    with serving(workspace.folder) as server:
        wait_until(server, start(server), "completed")
        document = server.get("/api/openapi.json")
        schema = cast("Any", schemathesis.openapi.from_dict(document))
        wrong: list[str] = []
        for found in schema.get_all_operations():
            operation = found.ok()
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                wrong += call(server, operation, mode)

    assert not wrong, "\n".join(wrong)
    assert {"/api/v1/runs", "/api/v1/approvals/{approval}/approve"} <= set(document["paths"])


def test_document_names_security_schemes_and_stable_operations(server: RunningServer) -> None:
    document = server.get("/api/openapi.json")

    schemes = document["components"]["securitySchemes"]
    assert (schemes["token"]["type"], schemes["token"]["scheme"]) == ("http", "bearer")
    assert schemes["session"]["in"] == "cookie"
    assert document["security"] == [{"token": []}, {"session": []}]
    assert document["paths"]["/api/v1/health"]["get"]["security"] == []
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    assert {"list_runs", "get_run", "approve", "deny", "get_cost"} <= set(names)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)


def test_each_response_of_the_document_has_a_schema(server: RunningServer) -> None:
    document = server.get("/api/openapi.json")
    schemas = document["components"]["schemas"]

    for operation in list_operations():
        for status, response in operation.responses.items():
            contents = [content["schema"] for content in response.get("content", {}).values()]
            assert all("$ref" in schema or "type" in schema for schema in contents), operation.name
            assert contents or status == "204", operation.name
    # A schema of FastAPI with the same name would replace it.
    assert all(schemas[name] == schema for name, schema in build_view_schemas().items())


def test_each_operation_responds_as_documented(workspace: Workspace, model: ModelServer) -> None:
    """The client checks every response, so this test only has to call all operations, in many states of a run."""
    workspace.write(".agent/tasks/report/TASK.md", TASK)
    workspace.write(".agent/tasks/broken/TASK.md", "---\nname: [\n---\n\nGo.\n")
    workspace.write(".agent/agents/careful/AGENT.md", "---\nname: Careful\nprofile: guarded\n---\n\nAsk.\n")
    with serving(workspace.folder) as server:
        call_runs(server, model)
        call_approvals(server, model)
        call_definitions(server, model)
        call_conversations(server, model)
        call_schedules(server, model)
        server.get("/api/v1/cost", by="agent")
        with server.client() as client:
            client.get("/api/v1/metrics")

    assert server.succeeded == {operation.name for operation in list_operations()}


def call_runs(server: RunningServer, model: ModelServer) -> None:
    model.follow(ASK, says("Blue."), says("Again."), ASK, says("Red."))
    run_id = start(server)
    path = f"/api/v1/runs/{run_id}"
    assert wait_until(server, run_id, "input_required")["resume_token"]
    server.post(f"{path}/answer", {"values": {"colour": "blue"}})
    wait_until(server, run_id, "completed")
    for name in ("view", "entries", "events", "artifacts"):
        assert server.get(f"{path}/{name}")
    assert server.state is not None
    file = server.state.runtime.folder(run_id) / "artifacts/note.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text("hello\n")
    assert server.get(f"{path}/artifacts")["items"] == [{"name": "note.txt", "bytes": 6}]
    with server.client() as client:
        assert client.get(f"{path}/artifacts/note.txt").text == "hello\n"
        assert client.get(f"{path}/export").content
    forked = str(server.post(f"{path}/fork", {"at": 1}, status=201)["run_id"])
    wait_until(server, forked, "completed")
    second = start(server)
    wait_until(server, second, "input_required")
    server.post(f"/api/v1/runs/{second}/cancel")
    wait_until(server, start(server, mode="dry_run", provider="offline"), "completed")
    assert len(server.get("/api/v1/runs")["items"]) == 4


def call_approvals(server: RunningServer, model: ModelServer) -> None:
    model.follow(WRITE, WRITE, says("Done."))
    run_id = start(server, "write a note", profile="guarded", max_turns=2)
    assert wait_until(server, run_id, "paused")["approvals"]
    (waiting,) = server.get("/api/v1/approvals")["items"]
    path = f"/api/v1/approvals/{waiting['approval_id']}"
    server.post(f"{path}/approve", {"hash": waiting["hash"], "arguments": {"path": "a.txt", "content": "a\n"}})
    assert server.get(path)["attempts"]
    wait_until(server, run_id, "paused")
    (second,) = server.get("/api/v1/approvals")["items"]
    server.post(f"/api/v1/approvals/{second['approval_id']}/deny", {"reason": "No."})
    wait_until(server, run_id, "escalated")
    server.post(f"/api/v1/runs/{run_id}/resume", {"max_turns": 5})
    wait_until(server, run_id, "completed")
    assert len(server.get("/api/v1/approvals", status="")["items"]) == 2


def call_definitions(server: RunningServer, model: ModelServer) -> None:
    model.follow(says('{"words": 3}'))
    assert [task["loaded"] for task in server.get("/api/v1/tasks")["items"]] == [False, True]
    shown = server.get("/api/v1/tasks/report")
    assert shown["steps"][0]["output_schema"] == {"type": "object", "required": ["words"]}
    assert server.get("/api/v1/tasks/report/input-schema") == shown["input_schema"]
    begun = server.post("/api/v1/tasks/report/runs", {"inputs": {"topic": "tea"}}, status=201)
    found = wait_until(server, str(begun["run_id"]), "completed")
    assert found["inputs"] == {"topic": "tea"}
    assert found["task_steps"]
    assert found["children"]
    assert server.get(f"/api/v1/runs/{found['run_id']}/view")["children"]
    assert server.get("/api/v1/agents")["items"]
    assert server.get("/api/v1/skills")["items"]


def call_conversations(server: RunningServer, model: ModelServer) -> None:
    model.follow(says("Hello."), ASK)
    server.post("/api/v1/conversations", {"name": "tea", "agent": "careful"}, status=201)
    for status in ("completed", "input_required"):
        sent = server.post("/api/v1/conversations/tea/messages", {"text": "Hello"}, status=201)
        wait_until(server, str(sent["run_id"]), status)
    assert server.get("/api/v1/conversations/tea")["open_turn"]["kind"] == "input"
    assert server.get("/api/v1/conversations")["items"]


def call_schedules(server: RunningServer, model: ModelServer) -> None:
    model.follow(says("Watered."))
    definition = {"name": "plants", "every": "1h", "prompt": "water the plants", "profile": "guarded"}
    server.post("/api/v1/schedules", {"definition": definition}, status=201)
    begun = server.post("/api/v1/schedules/plants/run", status=201)
    wait_until(server, str(begun["run_id"]), "completed")
    assert server.get("/api/v1/schedules/plants")["firings"]
    server.post("/api/v1/schedules/plants/pause")
    server.post("/api/v1/schedules/plants/resume")
    assert server.get("/api/v1/schedules")["items"]
    with server.client() as client:
        assert client.delete("/api/v1/schedules/plants").status_code == 204
