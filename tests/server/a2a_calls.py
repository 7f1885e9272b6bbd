"""Helpers for calls with the official Python client of A2A."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

import anyio
import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.types.a2a_pb2 import GetTaskRequest, Message, Part, Role, SendMessageRequest, StreamResponse, Task, TaskState
from running_server import RunningServer

BINDINGS = ("JSONRPC", "HTTP+JSON")


@asynccontextmanager
async def calling(server: RunningServer, agent: str = "", binding: str = "JSONRPC") -> AsyncGenerator[Client]:
    headers = {"authorization": f"Bearer {server.token}"}
    async with httpx.AsyncClient(headers=headers, timeout=120, trust_env=False) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        base = f"{server.url}/a2a/{agent}" if agent else server.url
        async with await create_client(base, config) as client:
            yield client


def tell(text: str, *, message_id: str = "", task_id: str = "", context_id: str = "") -> SendMessageRequest:
    message = Message(
        message_id=message_id or str(uuid4()),
        task_id=task_id,
        context_id=context_id,
        role=Role.ROLE_USER,
        parts=[Part(text=text)],
    )
    return SendMessageRequest(message=message)


async def send(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    with anyio.fail_after(120):
        return [event async for event in client.send_message(request)]


async def wait_for(client: Client, task_id: str, state: TaskState) -> Task:
    with anyio.fail_after(120):
        while True:
            task = await client.get_task(GetTaskRequest(id=task_id))
            if task.status.state == state:
                return task
            await anyio.sleep(0.05)
