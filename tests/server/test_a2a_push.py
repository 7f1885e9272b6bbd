"""A2A push notifications: configured with the official Python client, received on a real socket."""

import time

import pytest
from a2a.client import Client
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError
from a2a_calls import BINDINGS, calling, send, tell
from anyio import run_process
from anyio.to_thread import run_sync
from model_server import ModelServer, calls, says
from push_receiver import PushReceiver
from run_workspace import QUICK, Workspace, use_model
from running_server import RunningServer, serving, serving_process

from agent_command import AGENT

pytestmark = pytest.mark.anyio
SUBTASK = "---\nname: Asker\ndescription: Asks.\n---\n\nAsk.\n"
LEAD = "---\nname: Lead\ndescription: L.\ntool_approvals:\n  rules:\n    - {tool: delegate, allow: true}\n---\nLead.\n"
REFUSED = (
    "http://127.0.0.1:9/hook",
    "https://127.0.0.1/hook",
    "https://localhost/hook",
    "https://169.254.169.254/latest/meta-data",
    "https://[::1]/hook",
    "https://[::ffff:10.0.0.1]/hook",
    "https://2130706433/hook",
    "http://203.0.113.9/hook",
    "https://user@198.51.100.1/hook",
    "file:///etc/passwd",
    "",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def receiver() -> PushReceiver:
    """A receiver at a system-chosen port, not listening yet."""
    made = PushReceiver(0)
    with made.listening():
        pass
    return made


@pytest.fixture
def open_workspace(workspace: Workspace, model: ModelServer, receiver: PushReceiver) -> Workspace:
    """A workspace whose settings allow the receiver, which is neither public nor uses TLS."""
    hosts = {"push_hosts": [f"127.0.0.1:{receiver.port}"]}
    workspace.configure(model=use_model(model), runtime=QUICK, server=hosts)
    return workspace


def name_receiver(receiver: PushReceiver, **more: str) -> TaskPushNotificationConfig:
    authentication = AuthenticationInfo(scheme="Bearer", credentials="of-the-receiver")
    return TaskPushNotificationConfig(url=receiver.url, token="talk-7", authentication=authentication, **more)


def tell_with(config: TaskPushNotificationConfig, text: str) -> SendMessageRequest:
    request = tell(text)
    request.configuration.CopyFrom(SendMessageConfiguration(task_push_notification_config=config))
    return request


async def test_each_state_is_pushed_once_despite_server_and_receiver_downtime(
    open_workspace: Workspace, model: ModelServer, receiver: PushReceiver
) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Painted it."))
    with serving_process(open_workspace.folder) as first:
        async with calling(first.running) as client:
            asked = await send(client, tell_with(name_receiver(receiver), "Paint it"))
        first.process.kill()
        first.process.wait(100)
    task_id = asked[0].task.id

    with serving_process(open_workspace.folder) as second:
        with receiver.listening():
            receiver.wait(1)
        async with calling(second.running) as client:
            done = await send(client, tell("blue", task_id=task_id))
        with receiver.listening():
            receiver.wait(2)

    (headers, question), (_, end) = receiver.taken
    assert asked[-1].status_update.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert done[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert receiver.states == ["INPUT_REQUIRED", "COMPLETED"]
    assert question["task"]["id"] == end["task"]["id"] == task_id
    assert question["task"]["status"]["message"]["parts"][0]["text"] == "Which colour?"
    assert end["task"]["artifacts"][0]["parts"][0]["text"] == "Painted it."
    assert (headers["authorization"], headers["x-a2a-notification-token"]) == ("Bearer of-the-receiver", "talk-7")
    assert headers["content-type"] == "application/a2a+json"
    assert len({sent["webhook-id"] for sent, _ in receiver.taken}) == 2


async def test_a_question_of_a_child_run_is_pushed_for_the_task(
    open_workspace: Workspace, model: ModelServer, receiver: PushReceiver
) -> None:
    open_workspace.write(".agent/agents/lead/AGENT.md", LEAD)
    open_workspace.write(".agent/agents/asker/AGENT.md", SUBTASK)
    model.follow(calls("delegate", agent="asker", task="Ask"), calls("ask_user", question="Which colour?"))

    with serving(open_workspace.folder) as server, receiver.listening():
        async with calling(server, "lead") as client:
            events = await send(client, tell_with(name_receiver(receiver), "Have it asked"))
            receiver.wait(1)

    assert receiver.states == ["INPUT_REQUIRED"]
    assert receiver.taken[0][1]["task"]["id"] == events[0].task.id


async def test_question_of_a_fork_is_not_pushed_to_the_receivers_of_the_original_task(
    open_workspace: Workspace, model: ModelServer, receiver: PushReceiver
) -> None:
    model.follow(calls("ask_user", question="Which color?"))

    with receiver.listening():
        with serving(open_workspace.folder) as server:
            async with calling(server) as client:
                task_id = (await send(client, tell_with(name_receiver(receiver), "Paint it")))[0].task.id
                receiver.wait(1)
        fork = [AGENT, "fork", task_id, "--at", "2"]
        await run_process(fork, cwd=open_workspace.folder, check=False)
        await run_sync(open_workspace.agent, "notify", "send")

    assert len(model.received) == 2
    assert [body["task"]["id"] for _, body in receiver.taken] == [task_id]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_the_caller_of_a_task_can_set_read_and_remove_receivers(
    binding: str, open_workspace: Workspace, model: ModelServer, receiver: PushReceiver
) -> None:
    model.follow(calls("ask_user", question="Which?"), says("Done."))

    with serving(open_workspace.folder) as server:
        async with calling(server, binding=binding) as client:
            task_id = (await send(client, tell("Ask")))[0].task.id
            made = await client.create_task_push_notification_config(
                name_receiver(receiver, task_id=task_id, id="mine")
            )
            found = await client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
            )
            listed = await list_names(client, task_id)
            await client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
            )
            left = await list_names(client, task_id)
            with pytest.raises((A2AError, A2AClientError)):
                await client.create_task_push_notification_config(name_receiver(receiver, task_id="a2a-other"))

    assert (made.id, made.url) == (found.id, found.url) == ("mine", receiver.url)
    assert found.authentication.scheme == "Bearer"
    assert not found.authentication.credentials
    assert (listed, left) == (["mine"], [])


async def list_names(client: Client, task_id: str) -> list[str]:
    answer = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task_id))
    return [config.id for config in answer.configs]


async def test_a_message_for_a_removed_receiver_is_dropped(
    open_workspace: Workspace, model: ModelServer, receiver: PushReceiver, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("ask_user", question="Which?"), says("Done."))

    with serving(open_workspace.folder) as server:
        async with calling(server) as client:
            task_id = (await send(client, tell_with(name_receiver(receiver), "Ask")))[0].task.id
            await client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=task_id)
            )
        listed = await run_sync(wait_for_message, open_workspace, capsys, " dropped ")

    assert "of-the-receiver" not in listed
    assert receiver.taken == []


def wait_for_message(workspace: Workspace, capsys: pytest.CaptureFixture[str], word: str) -> str:
    """Wait for a message that contains the word and return all messages."""
    until, listed = time.monotonic() + 100, ""
    while word not in listed:
        assert time.monotonic() < until, listed
        capsys.readouterr()
        workspace.agent("notify", "list")
        listed = capsys.readouterr().out
    return listed


async def test_a_receiver_must_be_external_and_use_tls(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    for url in REFUSED:
        async with calling(server) as client:
            with pytest.raises((A2AError, A2AClientError)):
                await send(client, tell_with(TaskPushNotificationConfig(url=url), "Ask"))

    assert model.received == []


async def test_push_credentials_cannot_inject_a_header(
    open_workspace: Workspace, model: ModelServer, receiver: PushReceiver
) -> None:
    hostile = TaskPushNotificationConfig(url=receiver.url, token="x\r\nhost: other")

    with serving(open_workspace.folder) as server:
        async with calling(server) as client:
            with pytest.raises((A2AError, A2AClientError), match="token"):
                await send(client, tell_with(hostile, "Ask"))

    assert model.received == []
