"""The trace context of a request is propagated to the work that it starts."""

import json
from uuid import uuid4

from model_server import ModelServer, says
from run_workspace import Workspace
from running_server import RunningServer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "A2A-Version": "1.0"}


def find_traces(workspace: Workspace) -> set[str]:
    files = (workspace.folder / "runs").glob("*/events.jsonl")
    return {str(json.loads(line)["trace_id"]) for file in files for line in file.read_text().splitlines()}


def test_a_run_started_over_http_is_part_of_the_trace_of_the_request(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(says("Done."))
    with server.client() as client:
        begun = client.post("/api/v1/runs", json={"task": "Do it"}, headers=HEADERS)

    assert begun.status_code == 201
    assert find_traces(workspace) == {TRACE}


def test_a_task_of_an_a2a_caller_is_part_of_its_trace(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(says("Done."))
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "Do it"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    with server.client() as client:
        answer = client.post("/a2a/rpc", json=body, headers=HEADERS).json()

    assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert find_traces(workspace) == {TRACE}
