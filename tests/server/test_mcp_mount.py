"""MCP at `/mcp` of the server: by token only, both eras, approvals as links to the console."""

from typing import Any

import httpx2
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model
from running_server import RunningServer, serving

MODERN = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {
        "extensions": {"io.modelcontextprotocol/tasks": {}},
        "elicitation": {"form": {}, "url": {}},
    },
}


def call(client: httpx2.Client, method: str, *, header: str = "", **params: Any) -> httpx2.Response:
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": method,
        **({"mcp-name": header} if header else {}),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    return client.post("/mcp", json=body, headers=headers)


def test_mcp_wants_a_token_and_takes_no_cookie(server: RunningServer) -> None:
    with server.client("") as nobody, server.sign_in() as browser, server.client() as client:
        answers = [call(each, "tools/list").status_code for each in (nobody, browser)]
        listed = call(client, "tools/list").json()

    assert set(answers) == {401}
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["run", "run_result"]


def test_an_approval_is_a_link_that_a_person_opens_and_no_answer_decides_it(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    model.follow(calls("Write", path="a.txt", content="x"), says("Written."))
    with serving(workspace.folder) as server, server.client() as client:
        arguments = {"task": "Write a file"}
        task = call(client, "tools/call", header="run", name="run", arguments=arguments).json()["result"]
        task_id = task["taskId"]
        while "inputRequests" not in task:
            task = call(client, "tasks/get", header=task_id, taskId=task_id).json()["result"]
        ((approval, asked),) = task["inputRequests"].items()
        answer = {approval: {"action": "accept"}}
        call(client, "tasks/update", header=task_id, taskId=task_id, inputResponses=answer)
        after = call(client, "tasks/get", header=task_id, taskId=task_id).json()["result"]
        with server.sign_in() as person:
            page = person.get(asked["params"]["url"].removeprefix(server.url))

        assert asked["params"]["mode"] == "url"
        assert asked["params"]["url"] == f"{server.url}/approvals/{approval}"
        assert after["status"] == "input_required"
        assert not (workspace.folder / "a.txt").exists()
        assert "a.txt" in page.text

        server.post(f"/api/v1/approvals/{approval}/approve")
        while after["status"] != "completed":
            after = call(client, "tasks/get", header=task_id, taskId=task_id).json()["result"]

    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "x"
