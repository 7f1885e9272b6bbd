"""An MCP client made of messages, against the command as a process or the server in this process."""

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from agent_command import AGENT
from metier.protocols.mcp.server import build_server, open_endpoint
from metier.runtime.opened_host import open_host
from metier.runtime.runs import open_runtime

MODERN = "2026-07-28"
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
SECONDS = 100.0

type Message = dict[str, Any]


def build_params(params: Mapping[str, Any], capabilities: Mapping[str, Any]) -> Message:
    """Build parameters with the envelope of the session-free protocol."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "peer", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": dict(capabilities),
    }
    return {**params, "_meta": {**params.get("_meta", {}), **meta}}


class ProcessPeer:
    """A line-based client of `agent mcp serve` in a folder."""

    def __init__(self, folder: Path, *, capabilities: Mapping[str, Any] | None = None) -> None:
        self.process = subprocess.Popen(
            [AGENT, "mcp", "serve"], cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.capabilities = capabilities or {}
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def request(self, method: str, **params: Any) -> Message:
        """Return the result of a request, or its error under `error`."""
        self._number += 1
        self.write({"id": self._number, "method": method, "params": build_params(params, self.capabilities)})
        while True:
            message = self.read()
            if message.get("id") == self._number:
                return cast("Message", message.get("result", message))

    def write(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def read(self) -> Message:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server closed its output"
        return cast("Message", json.loads(line))

    def close(self) -> int:
        """Close its input like a client at its end, and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return self.process.wait(60)


class Peer:
    """A client of the server in this process, with or without handshake (`is_modern`)."""

    def __init__(self, *, capabilities: Mapping[str, Any], is_modern: bool) -> None:
        self.capabilities = capabilities
        self.is_modern = is_modern
        self.asked: list[Message] = []
        """Requests that the server sent."""
        self.notified: list[Message] = []
        self.answers: list[Message] = []
        """Answers to its requests, in order."""
        self._number = 0
        self._waiting: dict[object, tuple[anyio.Event, list[Message]]] = {}
        self.to_server, self.received = anyio.create_memory_object_stream[SessionMessage | Exception](100)
        self.sent, self._from_server = anyio.create_memory_object_stream[SessionMessage](100)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for stream in (self.to_server, self.received, self.sent, self._from_server):
            stream.close()

    async def listen(self) -> None:
        async for item in self._from_server:
            message = cast("Message", json.loads(item.message.model_dump_json(by_alias=True, exclude_none=True)))
            if "method" in message and "id" in message:
                self.asked.append(message)
                answer = self.answers.pop(0)
                await self.send({"id": message["id"], "result": answer})
            elif "method" in message:
                self.notified.append(message)
            else:
                event, kept = self._waiting[message["id"]]
                kept.append(cast("Message", message.get("result", message)))
                event.set()

    async def send(self, message: Message) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message})
        await self.to_server.send(SessionMessage(types.jsonrpc_message_adapter.validate_json(text)))

    async def request(self, method: str, **params: Any) -> Message:
        with anyio.fail_after(SECONDS):
            self._number += 1
            number = self._number
            event, kept = self._waiting[number] = anyio.Event(), []
            sent = build_params(params, self.capabilities) if self.is_modern else params
            await self.send({"id": number, "method": method, "params": sent})
            await event.wait()
            return kept[0]

    async def call(self, tool: str, **arguments: Any) -> Message:
        return await self.request("tools/call", name=tool, arguments=arguments)

    async def wait_for(self, task_id: str, *statuses: str) -> Message:
        """Poll a task until it has one of these states."""
        with anyio.fail_after(SECONDS):
            while True:
                task = await self.request("tasks/get", taskId=task_id)
                if task.get("status") in statuses or ("error" in task and "status" not in task):
                    return task
                await anyio.sleep(0.05)

    async def shake_hands(self) -> Message:
        info = {"name": "peer", "version": "1"}
        answer = await self.request(
            "initialize", protocolVersion="2025-11-25", capabilities=dict(self.capabilities), clientInfo=info
        )
        await self.send({"method": "notifications/initialized"})
        return answer


@asynccontextmanager
async def opened_peer(
    folder: Path, *, capabilities: Mapping[str, Any] | None = None, is_modern: bool = True
) -> AsyncGenerator[Peer]:
    """Open a client of this folder's server; its runs are released after the block."""
    opened = open_host(folder, environ=os.environ, home=Path.home(), flags=None, config=None)
    peer = Peer(capabilities=capabilities or {}, is_modern=is_modern)
    async with (
        open_runtime(opened.host) as runtime,
        open_endpoint(runtime, report=print) as door,
        peer,
        anyio.create_task_group() as group,
    ):
        server = build_server(door)
        group.start_soon(peer.listen)
        group.start_soon(server.run, peer.received, peer.sent, server.create_initialization_options())
        if not is_modern:
            await peer.shake_hands()
        yield peer
        group.cancel_scope.cancel()
