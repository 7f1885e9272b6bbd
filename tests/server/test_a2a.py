"""A2A through the official Python client over a real socket."""

import json
from typing import Any

import anyio
import pytest
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import A2AError
from a2a_calls import BINDINGS, calling, send, tell, wait_for
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from model_server import ModelServer, calls, says
from run_workspace import Workspace
from running_server import RunningServer, serving_process

pytestmark = pytest.mark.anyio
LEAD = "---\nname: Lead\ndescription: Leads the work.\n---\n\nLead.\n"
GUARDED = "---\nname: Careful\ndescription: Asks first.\nprofile: guarded\n---\n\nAsk.\n"
TASK = (
    "---\nname: Notes\ndescription: Writes notes.\ninputs:\n  - name: version\n---\n\nWrite for {{inputs.version}}.\n"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_starts_a_run_whose_stream_ends_with_its_result(
    binding: str, workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet", args=[]), says("Hello, Ada."))

    async with calling(server, binding=binding) as client:
        events = await send(client, tell("Greet Ada"))
        last = await client.get_task(GetTaskRequest(id=events[0].task.id))

    assert events[0].HasField("task")
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert events[-2].artifact_update.artifact.parts[0].text == "Hello, Ada."
    assert last.artifacts[0].parts[0].text == "Hello, Ada."
    assert last.history[0].parts[0].text == "Greet Ada"


async def test_a_message_sent_twice_starts_one_run(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(says("Once."))

    async with calling(server) as client:
        first = await send(client, tell("Do it", message_id="m-1"))
        again = await send(client, tell("Do it", message_id="m-1"))
        listed = await client.list_tasks(ListTasksRequest())

    assert first[0].task.id == again[0].task.id
    assert len(listed.tasks) == 1
    assert len(model.received) == 1


async def test_a_question_is_input_required_and_a_message_answers_it(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Painted it."))

    async with calling(server) as client:
        asked = await send(client, tell("Paint it"))
        task_id = asked[0].task.id
        waiting = await client.get_task(GetTaskRequest(id=task_id))
        done = await send(client, tell("blue", task_id=task_id))

    assert waiting.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert waiting.status.message.parts[0].text == "Which colour?"
    assert done[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert "blue" in json.dumps(model.received[-1])


async def test_an_approval_is_auth_required_and_only_a_user_decides_it(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    workspace.write(".agent/agents/careful/AGENT.md", GUARDED)
    model.follow(calls("Write", path="note.txt", content="the secret plan"), says("Written."))

    async with calling(server, "careful") as client:
        events = await send(client, tell("Write it"))
        task_id = events[0].task.id
        waiting = await client.get_task(GetTaskRequest(id=task_id))
        with pytest.raises((A2AError, A2AClientError), match="has no open question"):
            await send(client, tell("approve it, please", task_id=task_id))
        said = waiting.status.message.parts[0].text
        approval = said.partition("approve ")[2].partition("`")[0]

        assert waiting.status.state == TaskState.TASK_STATE_AUTH_REQUIRED
        assert "the secret plan" not in said
        assert not (workspace.folder / "note.txt").exists()
        assert await anyio.to_thread.run_sync(workspace.agent, "approvals", "approve", approval) == 0
        await wait_for(client, task_id, TaskState.TASK_STATE_COMPLETED)

    assert (workspace.folder / "note.txt").read_text() == "the secret plan"


async def test_a_waiting_task_can_be_listed_subscribed_to_and_canceled(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(calls("ask_user", question="Which?"), says("Done."))

    async with calling(server) as client:
        first = await send(client, tell("One", context_id="talk"))
        await send(client, tell("Two"))
        listed = await client.list_tasks(ListTasksRequest(context_id="talk"))
        waiting = await client.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_INPUT_REQUIRED))
        page = await client.list_tasks(ListTasksRequest(page_size=1))
        following = [event async for event in client.subscribe(SubscribeToTaskRequest(id=first[0].task.id))]
        canceled = await client.cancel_task(CancelTaskRequest(id=first[0].task.id))
        with pytest.raises((A2AError, A2AClientError)):
            await client.cancel_task(CancelTaskRequest(id=first[0].task.id))

    assert [task.id for task in listed.tasks] == [first[0].task.id]
    assert listed.tasks[0].context_id == "talk"
    assert first[0].task.id in [task.id for task in waiting.tasks]
    assert len(page.tasks) == 1
    assert page.next_page_token
    assert following[0].task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert canceled.status.state == TaskState.TASK_STATE_CANCELED


async def test_a_caller_sees_only_its_own_tasks(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(says("Mine."))
    process = workspace.start("run", "--quiet", "A run of the user")
    await anyio.to_thread.run_sync(process.communicate, None, 60)
    assert process.returncode == 0
    own = workspace.run_ids()[-1]

    async with calling(server) as client:
        listed = await client.list_tasks(ListTasksRequest())
        for wrong in (own, "a2a-00000000000000000000000000000000", "../../etc/passwd", ""):
            with pytest.raises((A2AError, A2AClientError)):
                await client.get_task(GetTaskRequest(id=wrong))

    assert list(listed.tasks) == []


async def test_the_public_card_describes_agents_only_with_a_token(workspace: Workspace, server: RunningServer) -> None:
    workspace.write(".agent/agents/lead/AGENT.md", LEAD)
    workspace.write(".agent/tasks/notes/TASK.md", TASK)
    with server.client("") as stranger:
        public = stranger.get("/.well-known/agent-card.json")
        closed = stranger.get("/a2a/lead/.well-known/agent-card.json")
        rpc = stranger.post("/a2a/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}})
        extended_by_rpc = stranger.post("/a2a/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "GetExtendedAgentCard"})
        extended_by_rest = stranger.get("/a2a/v1/extendedAgentCard")
    async with calling(server, "lead") as client:
        extended = await client.get_extended_agent_card(GetExtendedAgentCardRequest())

    assert public.status_code == 200
    assert [skill["id"] for skill in public.json()["skills"]] == ["run"]
    assert {"cache-control", "last-modified", "etag"} <= set(public.headers)
    for refused in (closed, rpc, extended_by_rpc, extended_by_rest):
        assert refused.status_code == 401
        assert "notes" not in refused.text
    assert extended.name == "Lead"
    assert [skill.id for skill in extended.skills] == ["run", "task:notes", "greeter"]


async def test_a_task_definition_missing_from_the_card_is_rejected(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    workspace.write(".agent/agents/lead/AGENT.md", LEAD.replace("---\n\n", "tasks: [notes]\n---\n\n"))
    workspace.write(".agent/tasks/notes/TASK.md", TASK)
    workspace.write(".agent/tasks/secret/TASK.md", TASK)
    model.follow(says("Written."))

    async with calling(server, "lead") as client:
        card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        for wrong in ("task:secret", "task:none", "nothing"):
            with pytest.raises((A2AError, A2AClientError), match="lists no skill"):
                await send(client, ask_for(wrong))
        assert model.received == []
        done = await send(client, ask_for("task:notes"))

    assert "task:notes" in [skill.id for skill in card.skills]
    assert "task:secret" not in [skill.id for skill in card.skills]
    assert done[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


def ask_for(skill: str) -> SendMessageRequest:
    request = tell("Please")
    request.message.metadata.update({"skill": skill})
    request.message.parts.append(Part(data=ParseDict({"version": "1.2"}, Value())))
    return request


def test_a_pre_1_0_client_can_send_get_and_cancel(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Painted it."))
    message = {"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "Paint it"}]}

    def call(method: str, **params: object) -> dict[str, Any]:
        return server.post("/a2a/rpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    asked = call("message/send", message=message)["result"]
    found = call("tasks/get", id=asked["id"])["result"]
    canceled = call("tasks/cancel", id=asked["id"])["result"]
    unknown = call("tasks/none", id=asked["id"])
    with server.client() as client:
        by_rest = client.post("/a2a/v1/message:send", json={"message": message}, headers={"A2A-Version": "0.3"})

    assert (asked["kind"], asked["status"]["state"]) == ("task", "input-required")
    assert found["status"]["message"]["parts"][0]["text"] == "Which colour?"
    assert canceled["status"]["state"] == "canceled"
    assert "error" in unknown
    assert "VERSION_NOT_SUPPORTED" in by_rest.text


async def test_a_task_survives_the_kill_of_its_server(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Painted it."))
    with serving_process(workspace.folder) as first:
        async with calling(first.running) as client:
            asked = await send(client, tell("Paint it"))
        first.process.kill()
        first.process.wait(100)
    task_id = asked[0].task.id

    with serving_process(workspace.folder) as second:
        async with calling(second.running) as client:
            await wait_for(client, task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
            done = await send(client, tell("blue", task_id=task_id))

    assert done[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


def test_a_hostile_peer_gets_errors_and_the_server_continues(server: RunningServer) -> None:
    with server.client() as client:
        huge = client.post("/a2a/rpc", content=b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 10_000_000 + b'"}')
        broken = [
            client.post("/a2a/rpc", content=body, headers={"content-type": "application/json", "A2A-Version": "1.0"})
            for body in (b"{", b"[]", b"null", b'{"jsonrpc":"2.0","id":{},"method":"SendMessage"}', b"\xff\xfe")
        ]
        unknown = client.post("/a2a/none/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}})
        alive = client.get("/api/v1/health")

    assert huge.status_code in (200, 413)
    assert "error" in huge.json() or huge.status_code == 413
    assert all("error" in answer.json() for answer in broken)
    assert "error" in unknown.json()
    assert alive.status_code == 200
