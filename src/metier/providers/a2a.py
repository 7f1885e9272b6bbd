"""A remote agent as the model provider of a run: it gets the task over A2A, and its result is the run's result.

The wait is durable: the message id is derived from the run, so a process that continues after a crash sends the same
message again and finds the same task. The answer is only ever a result or a question: a remote agent has no tools here,
and its text is never parsed as a decision.
"""

from collections.abc import Callable, Mapping
from typing import Literal, cast
from urllib.parse import urlsplit

import anyio
import httpx2
from msgspec import Struct
from pydantic import JsonValue

from metier.messages import Message, ModelReply, Part, TextPart, ToolCallPart, ToolResultPart
from metier.providers.base import ModelRequest, Observer, ServerAddress
from metier.providers.failures import (
    AnswerTooLarge,
    AuthFailed,
    BadRequest,
    CallFailed,
    ConnectionLost,
    NotFound,
    ReplyBroken,
    ServerFailed,
)
from metier.providers.transport import (
    ReplyTooLarge,
    connection_lost,
    exchange,
    open_http_client,
    parse_address,
    read_body,
)
from metier.providers.wire import Wire, as_object, as_objects, as_text, parse_json
from metier.telemetry.tracing import HEADER

_PREFIX = "TASK_STATE_"
ENDED = frozenset({"completed", "failed", "canceled", "rejected"})
SETTLED = ENDED | {"input_required", "auth_required"}
"""States that only change after an answer, or not at all."""


class RemoteTask(Struct, frozen=True, kw_only=True):
    id: str
    state: str
    """The protocol's state, in lower case and without its prefix."""
    text: str = ""
    """The result, the question, or the reason of the failure."""
    fields: JsonValue = None
    """The fields of the answer, if the question defines any."""

    @property
    def is_settled(self) -> bool:
        return self.state in SETTLED


def read_card(card: Wire) -> str:
    """Return the address for JSON-RPC of version 1. Raises `BadRequest` if there is none."""
    for interface in as_objects(card.get("supportedInterfaces")):
        version = as_text(interface.get("protocolVersion"))
        if interface.get("protocolBinding") == "JSONRPC" and version.startswith("1"):
            return as_text(interface.get("url"))
    raise BadRequest("The remote agent's card has no JSON-RPC 1.x address")


def read_result(result: Wire) -> RemoteTask:
    """Read the answer to a message: a task, or a message that is the whole answer."""
    if task := as_object(result.get("task")):
        return read_task(task)
    if message := as_object(result.get("message")):
        return RemoteTask(id=as_text(message.get("taskId")), state="completed", text=_join(message.get("parts")))
    raise ReplyBroken("The remote agent answered with neither a task nor a message")


def read_task(task: Wire) -> RemoteTask:
    status = as_object(task.get("status"))
    state, task_id = as_text(status.get("state")).removeprefix(_PREFIX).lower(), as_text(task.get("id"))
    if not state or not task_id:
        raise ReplyBroken("The remote agent answered with a task that has no id or no state")
    parts = as_object(status.get("message")).get("parts")
    text = _join(parts)
    if state == "completed":
        text = "\n\n".join(_join(each.get("parts")) for each in as_objects(task.get("artifacts"))) or text
    data = [as_object(part.get("data")) for part in as_objects(parts)]
    fields = next((each["fields"] for each in data if "fields" in each), None)
    return RemoteTask(id=task_id, state=state, text=text, fields=cast("JsonValue", fields))  # parsed JSON


def _join(parts: object) -> str:
    return "\n\n".join(text for part in as_objects(parts) if (text := as_text(part.get("text"))))


A2A = "a2a"
CARD = "/.well-known/agent-card.json"
FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.2, 5.0
OUTAGE_TIMEOUT_SECONDS = 60.0
"""Tolerated outage of a server that answered before, such as a restart."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Limit for one answer: a card, a task with its artifacts, or a list of tasks."""
ASK, FINISH = "ask_user", "finish"
_WAITS = "waits:"
"""Prefix of the mark of a question whose answer isn't sent to the remote agent."""


class RemoteAgent(Struct, frozen=True, kw_only=True):
    """A remote agent's address and credentials."""

    name: str
    url: str
    token: str = ""
    timeout_seconds: float = 3600.0
    """Time limit for one message."""


type ReadTask = Callable[[tuple[Message, ...]], str]
"""Extracts the task from the messages that a model would read."""


class RemoteAgentProvider:
    """Answers by asking a remote agent. `run_id` makes message ids repeatable after a crash."""

    def __init__(self, agent: RemoteAgent, *, run_id: str, read_task: ReadTask) -> None:
        self._agent = agent
        self._run_id = run_id
        self._read_task = read_task
        self._client: httpx2.AsyncClient | None = None
        self._endpoint = ""

    @property
    def name(self) -> str:
        return A2A

    @property
    def server_address(self) -> ServerAddress:
        return parse_address(self._agent.url)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        del observe  # a remote agent's progress isn't part of the reply
        with exchange(A2A, self._agent.timeout_seconds):
            headers = {HEADER: request.trace_parent} if request.trace_parent else {}
            await self._resolve_endpoint(headers)
            task = await self._submit(request, headers)
            task = await self._wait(task, headers)
        return ModelReply(
            parts=(self._decide(task, number=_count_replies(request.messages)),),
            stop_reason="tool_calls",
            provider=A2A,
            model=self._agent.name,
            response_id=task.id,
        )

    async def cancel(self) -> int:
        """Cancel the remote tasks of this run and return their number."""
        with exchange(A2A, self._agent.timeout_seconds):
            await self._resolve_endpoint({})
            listed = await self._call("ListTasks", {"contextId": self._run_id}, {})
            tasks = [read_task(each) for each in as_objects(listed.get("tasks"))]
            open_ones = [task for task in tasks if task.state not in ENDED]
            for task in open_ones:
                await self._call("CancelTask", {"id": task.id}, {})
        return len(open_ones)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        del request
        return None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _submit(self, request: ModelRequest, headers: Mapping[str, str]) -> RemoteTask:
        """Send the task or the answer to its question. If the agent needs no answer, only poll again."""
        number = _count_replies(request.messages)
        mark, text = _get_answer(request.messages)
        # The sign-in happens at the remote agent. The user's text only says that it's done, and is no input for the
        # task.
        if mark.startswith(_WAITS):
            return await self._poll(mark.removeprefix(_WAITS), headers)
        message: dict[str, JsonValue] = {
            "messageId": f"{self._run_id}-{number}",
            "contextId": self._run_id,
            "role": "ROLE_USER",
            "parts": [{"text": text if number else self._read_task(request.messages)}],
        }
        if mark:
            message["taskId"] = mark
        elif (task := await self._find_started(number, headers)) is not None:
            return task
        # Then poll: a request that stays open until the result would not survive a restart of either side.
        configuration: dict[str, JsonValue] = {"returnImmediately": True}
        sent: dict[str, JsonValue] = {"message": message, "configuration": configuration}
        return read_result(await self._call("SendMessage", sent, headers))

    async def _find_started(self, number: int, headers: Mapping[str, str]) -> RemoteTask | None:
        """Find the task that an earlier process of this run started."""
        # Not every server recognizes a repeated message by its id, so sending it again could start a second task.
        try:
            listed = await self._call("ListTasks", {"contextId": self._run_id}, headers)
        except CallFailed as failure:
            if isinstance(failure, AuthFailed | ConnectionLost | AnswerTooLarge):
                raise
            return None  # listing tasks is optional in the protocol
        # Newest first. A message without a task id starts a task, so if there are more tasks than replies, the message
        # arrived.
        found = as_objects(listed.get("tasks"))
        return read_task(found[0]) if len(found) > number else None

    async def _wait(self, task: RemoteTask, headers: Mapping[str, str]) -> RemoteTask:
        """Poll until the task is settled, tolerating short outages of the server."""
        pause, down_since = FIRST_POLL_SECONDS, None
        while not task.is_settled:
            await anyio.sleep(pause)
            pause = min(pause * 1.5, MAX_POLL_SECONDS)
            try:
                task, down_since = await self._poll(task.id, headers), None
            except (ConnectionLost, ServerFailed):
                down_since = anyio.current_time() if down_since is None else down_since
                if anyio.current_time() - down_since > OUTAGE_TIMEOUT_SECONDS:
                    raise
        return task

    async def _poll(self, task_id: str, headers: Mapping[str, str]) -> RemoteTask:
        return read_task(await self._call("GetTask", {"id": task_id}, headers))

    def _decide(self, task: RemoteTask, *, number: int) -> Part:
        call_id = f"remote-{number + 1}"
        match task.state:
            case "completed":
                return ToolCallPart(id=call_id, name=FINISH, arguments={"result": task.text})
            case "input_required":
                arguments: dict[str, JsonValue] = {"question": task.text or "The remote agent asks for input"}
                if task.fields is not None:
                    arguments["fields"] = task.fields
                return ToolCallPart(id=call_id, name=ASK, arguments=arguments, signature=task.id)
            case "auth_required":
                question = f"Remote agent {self._agent.name!r} is waiting for someone to sign in there: {task.text}"
                arguments = {"question": f"{question}\n\nReply with any text when that is done."}
                return ToolCallPart(id=call_id, name=ASK, arguments=arguments, signature=f"{_WAITS}{task.id}")
            case _:
                reason = task.text or "it gave no reason"
                raise BadRequest(f"Remote agent {self._agent.name!r} ended the task as {task.state}: {reason}")

    async def _resolve_endpoint(self, headers: Mapping[str, str]) -> None:
        """Read the JSON-RPC address from the agent's card."""
        if self._endpoint:
            return
        card = await self._send("GET", self._agent.url.rstrip("/") + CARD, headers=headers)
        endpoint = read_card(card)
        # The token is sent to this address, so a card may not redirect it to another origin.
        if _origin(endpoint) != _origin(self._agent.url):
            raise BadRequest(
                f"The card of remote agent {self._agent.name!r} names an address of another origin: {endpoint!r}",
                hint="Use that address in model.providers.a2a.agents if you trust it",
            )
        self._endpoint = endpoint

    async def _call(self, method: str, params: dict[str, JsonValue], headers: Mapping[str, str]) -> Wire:
        body: dict[str, JsonValue] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self._send("POST", self._endpoint, headers=headers, body=body)
        if error := as_object(answer.get("error")):
            raise BadRequest(f"Remote agent {self._agent.name!r} rejected {method}: {error.get('message', '')}")
        return as_object(answer.get("result"))

    async def _send(
        self, method: Literal["GET", "POST"], url: str, *, headers: Mapping[str, str], body: JsonValue = None
    ) -> Wire:
        sent = {"A2A-Version": "1.0", "Accept": "application/json", **headers}
        if self._agent.token:
            sent["Authorization"] = f"Bearer {self._agent.token}"
        try:
            self._client = self._client or open_http_client(self._agent.url)
            async with self._client.stream(method, url, json=body, headers=sent) as response:
                data = await read_body(response, max_bytes=MAX_ANSWER_BYTES)
        except ReplyTooLarge as error:
            raise AnswerTooLarge(
                f"Remote agent {self._agent.name!r} answered with more than {MAX_ANSWER_BYTES} bytes",
                hint="Ask it for a shorter result",
            ) from error
        except httpx2.HTTPError as error:
            raise connection_lost(A2A, error) from error
        check_status(response.status_code, self._agent.name)
        return as_object(parse_json(data))


def check_status(status: int, agent: str) -> None:
    """Raise the `CallFailed` for an error status."""
    if status < 300:
        return
    message = f"Remote agent {agent!r} answered with status {status}"
    if status in (401, 403):
        raise AuthFailed(message, hint="Check token_env of model.providers.a2a.agents", status=status)
    if status == 404:
        raise NotFound(message, hint="Check the url of model.providers.a2a.agents", status=status)
    if status >= 500 or status == 429:
        raise ServerFailed(message, status=status)
    # Redirects end here too: following one would send the token to an address that the user did not configure.
    raise BadRequest(message, status=status)


def _get_answer(messages: tuple[Message, ...]) -> tuple[str, str]:
    """Return the mark of the remote agent's last question and the answer to it; both empty at the start."""
    calls = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
    mark = calls[-1].signature if calls and calls[-1].name == ASK else ""
    parts = messages[-1].parts if messages else ()
    texts = [part.text for part in parts if isinstance(part, TextPart | ToolResultPart)]
    return mark, "\n\n".join(texts)


def _count_replies(messages: tuple[Message, ...]) -> int:
    return sum(message.role == "assistant" for message in messages)


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port
