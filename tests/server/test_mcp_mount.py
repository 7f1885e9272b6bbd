"""MCP at `/mcp` of the server: tokens only, both protocol versions, approvals as console links."""

from typing import Any

import httpx2
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model
from running_server import RunningServer, serving

from metier.server.users import build_entry, make_token

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


def test_mcp_requires_a_token_and_ignores_cookies(server: RunningServer) -> None:
    with server.client("") as nobody, server.sign_in() as browser, server.client() as client:
        answers = [call(each, "tools/list").status_code for each in (nobody, browser)]
        listed = call(client, "tools/list").json()

    assert set(answers) == {401}
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["run", "run_result"]


def configure_peers(workspace: Workspace, model: ModelServer) -> dict[str, str]:
    """Configure two peers and one with the grant `read`; return their tokens by name."""
    tokens = {name: make_token() for name in ("one", "two", "reader")}
    grants: dict[str, list[Any]] = {"reader": ["read"]}
    users = [build_entry(name, "peer", token, grants=grants.get(name, [])) for name, token in tokens.items()]
    workspace.configure(model=use_model(model), runtime=QUICK, server={"users": users})
    return tokens


def list_runs(client: httpx2.Client) -> set[str]:
    listed = call(client, "resources/list").json()["result"]["resources"]
    return {each["uri"] for each in listed if each["uri"].startswith("metier://runs/")}


def test_a_peer_can_read_only_its_own_runs(workspace: Workspace, model: ModelServer) -> None:
    tokens = configure_peers(workspace, model)
    model.follow(says("For the user."), says("For peer one."))
    assert workspace.agent("run", "-q", "A run of the user") == 0
    user_run = f"metier://runs/{workspace.run_ids()[0]}"
    with (
        serving(workspace.folder) as server,
        server.client(tokens["one"]) as one,
        server.client(tokens["two"]) as two,
        server.client(tokens["reader"]) as reader,
    ):
        result = call(one, "tools/call", header="run", name="run", arguments={"task": "Work"}).json()
        (own,) = list_runs(one)
        seen = {name: list_runs(each) for name, each in (("two", two), ("reader", reader))}
        foreign = call(two, "resources/read", header=own, uri=own).json()
        local = call(one, "resources/read", header=user_run, uri=user_run).json()
        mine = call(one, "resources/read", header=own, uri=own).json()
        ref = {"type": "ref/resource", "uri": "metier://runs/{run_id}"}
        empty = {"name": "run_id", "value": ""}
        completed = call(two, "completion/complete", ref=ref, argument=empty).json()["result"]["completion"]

    assert "error" not in result
    assert seen == {"two": set(), "reader": {own, user_run}}
    assert ("error" in foreign, "error" in local, "error" in mine) == (True, True, False)
    assert completed["values"] == []


def test_a_task_of_one_peer_is_unknown_to_another(workspace: Workspace, model: ModelServer) -> None:
    tokens = configure_peers(workspace, model)
    model.follow(calls("ask_user", question="Which?"))
    with (
        serving(workspace.folder) as server,
        server.client(tokens["one"]) as one,
        server.client(tokens["two"]) as two,
    ):
        task = call(one, "tools/call", header="run", name="run", arguments={"task": "Ask"}).json()["result"]
        task_id = task["taskId"]
        stolen = [call(two, f"tasks/{verb}", header=task_id, taskId=task_id).json() for verb in ("get", "cancel")]
        kept = call(one, "tasks/get", header=task_id, taskId=task_id).json()

    assert [each["error"]["message"] for each in stolen] == ["Unknown task"] * 2
    assert kept["result"]["status"] in ("working", "input_required")


def test_a_session_is_available_only_to_its_peer(workspace: Workspace, model: ModelServer) -> None:
    tokens = configure_peers(workspace, model)
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with serving(workspace.folder) as server:
        with server.client(tokens["one"]) as one:
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            opened = one.post("/mcp", json=body, headers=headers)
        session = {**headers, "mcp-session-id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        answers: dict[str, int] = {}
        for name in ("two", "one"):
            with server.client(tokens[name]) as client:
                answers[name] = client.post("/mcp", json=ping, headers=session).status_code

    assert answers == {"two": 404, "one": 200}


def test_an_approval_is_a_link_for_a_user_and_cannot_be_decided_by_an_answer(
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

        seen = server.get(f"/api/v1/approvals/{approval}")["hash"]
        server.post(f"/api/v1/approvals/{approval}/approve", {"hash": seen})
        while after["status"] != "completed":
            after = call(client, "tasks/get", header=task_id, taskId=task_id).json()["result"]

    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "x"
