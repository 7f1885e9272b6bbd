"""The A2A request handler over `runtime`: a task is a run, so it survives its server.

The SDK's own handler runs tasks in the web process; here a pool or a worker drives them, and every method reads the
store.
"""

import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, cast, override

import anyio
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types.a2a_pb2 import (
    AgentCard,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue, ValidationError

from metier.errors import MetierError, StoreError, ToolFailed, UsageError
from metier.protocols.a2a.caller import Caller
from metier.protocols.a2a.card import TASK, build_card, list_skill_ids
from metier.runtime.answers import Answer, check_answer
from metier.runtime.child_runs import request_task
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host
from metier.runtime.notify import a2a
from metier.runtime.notify.a2a import PREFIX, Target, check_target
from metier.runtime.queue.detached import submit, wake
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.runtime.status import RunStatus, get_status
from metier.store.base import RunRow
from metier.store.failures import LeaseHeld, RunExists
from metier.store.outbox import Receiver
from metier.views.user_question import UserQuestion

SKILL = "skill"
"""The metadata key of a message that names the requested A2A skill."""
_STATES: dict[str, int] = {name.removeprefix(PREFIX): value for name, value in TaskState.items()}
TERMINAL = frozenset(_STATES[name] for name in a2a.TERMINAL)
RESTING = frozenset(_STATES[name] for name in a2a.RESTING)


class Incoming(Struct, frozen=True, kw_only=True):
    text: str
    skill: str = ""
    """The requested A2A skill; empty if the message names none."""
    task_id: str = ""
    """A task definition; its inputs are the data of the message."""
    values: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def read_message(message: Message) -> Incoming:
    """Read a message. Raises `InvalidParamsError`, `ContentTypeNotSupportedError` for unsupported parts."""
    if not message.message_id:
        raise InvalidParamsError(message="The message has no messageId")
    texts: list[str] = []
    values: dict[str, JsonValue] = {}
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                found = cast("JsonValue", MessageToDict(part.data))  # a protobuf value is JSON
                # Only an object has names, which can be inputs of a task.
                if isinstance(found, dict):
                    values |= found
                else:
                    texts.append(json.dumps(found, ensure_ascii=False))
            case _:
                raise ContentTypeNotSupportedError(message="Files are not taken here; send text or data")
    wanted = str(MessageToDict(message.metadata).get(SKILL, "")) if message.HasField("metadata") else ""
    task_id = wanted.removeprefix(TASK) if wanted.startswith(TASK) else ""
    text = "\n\n".join(each for each in texts if each.strip())
    if not text and not task_id and not values:
        raise InvalidParamsError(message="The message has no text")
    # Without a task definition or an open question, data has no names to fill, so the model reads it as text.
    if values and not task_id and not message.task_id:
        text = "\n\n".join(each for each in (text, json.dumps(values, ensure_ascii=False)) if each)
    return Incoming(text=text, skill=wanted, task_id=task_id, values=values)


def build_answer(incoming: Incoming, question: UserQuestion) -> dict[str, JsonValue]:
    """Return the data as they are; text answers the first field."""
    return incoming.values or {question.names[0]: incoming.text}


def get_task_state(status: RunStatus) -> int:
    return _STATES[a2a.get_task_state(status)]


def build_task(status: RunStatus, caller: Caller, *, clean: Callable[[str], str]) -> Task:
    described = a2a.build_task(status, at=status.row.updated_at, base_url=caller.base_url, clean=clean)
    return ParseDict(described, Task())


MAX_RECEIVERS = 10
"""Push receivers of one task."""
_MAX_ID_CHARACTERS = 200

CALLER = "metier"
"""The key under which a call's context holds its `Caller`."""
MAX_WAIT_SECONDS = 300.0
"""After this time, a caller that waits for the end gets the current task."""
_LOOK_SECONDS = 0.5
_MAX_CONTEXT_CHARACTERS = 8_000
_PAGE = 50
_MAX_PAGE = 100
_MAX_LOOKED_AT = 2_000


async def set_config(
    runtime: Runtime, run_id: str, config: TaskPushNotificationConfig, *, caller: Caller
) -> TaskPushNotificationConfig:
    """Store a push receiver. Raises `InvalidParamsError` for an address that the server may not reach."""
    # Callers may leave out the ID. A task then has one such receiver, and a new one replaces it.
    name = config.id or run_id
    if len(name) > _MAX_ID_CHARACTERS:
        raise InvalidParamsError(message=f"The id is longer than {_MAX_ID_CHARACTERS} characters")
    try:
        target = Target(
            url=config.url,
            token=config.token,
            scheme=config.authentication.scheme,
            credentials=config.authentication.credentials,
            base_url=caller.base_url,
        )
        await check_target(target, runtime.host)
    except ValidationError as error:
        names = ", ".join(str(problem["loc"][0]) for problem in error.errors())
        raise InvalidParamsError(message=f"Not usable in a notification: {names}") from error
    except ToolFailed as error:
        raise InvalidParamsError(message=error.message) from error
    others = [each for each in await runtime.store.outbox.list_receivers(run_id) if each.name != name]
    if len(others) >= MAX_RECEIVERS:
        raise InvalidParamsError(message=f"A task has at most {MAX_RECEIVERS} receivers")
    receiver = Receiver(run_id=run_id, name=name, data=target.model_dump_json())
    await runtime.store.outbox.set_receiver(receiver)
    return _build(receiver)


async def get_config(runtime: Runtime, run_id: str, name: str) -> TaskPushNotificationConfig:
    for config in await list_configs(runtime, run_id):
        if config.id == name:
            return config
    raise TaskNotFoundError


async def list_configs(runtime: Runtime, run_id: str) -> Sequence[TaskPushNotificationConfig]:
    return [_build(each) for each in await runtime.store.outbox.list_receivers(run_id)]


def _build(receiver: Receiver) -> TaskPushNotificationConfig:
    """Return the receiver without its credentials."""
    target = Target.model_validate_json(receiver.data)
    config = TaskPushNotificationConfig(id=receiver.name, task_id=receiver.run_id, url=target.url, token=target.token)
    if target.scheme:
        config.authentication.CopyFrom(AuthenticationInfo(scheme=target.scheme))
    return config


class PublicPaths(Protocol):
    @property
    def public(self) -> set[str]: ...


class MountingServer(Protocol):
    """The part of a server that mounted protocols use."""

    @property
    def host(self) -> Host: ...

    @property
    def access(self) -> PublicPaths: ...

    @property
    def base_path(self) -> str: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def queue(self) -> str: ...

    def nudge(self) -> None: ...


@dataclass(slots=True)
class RunTasks(RequestHandler):
    """Tasks of A2A callers as runs of the workspace."""

    state: MountingServer

    @property
    def _runtime(self) -> Runtime:
        return self.state.runtime

    @override
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        caller = _get_caller(context)
        with _translated():
            run_id = await self._accept(params, caller)
            if not params.configuration.return_immediately:
                with anyio.move_on_after(MAX_WAIT_SECONDS):
                    async for _ in self._follow(run_id, caller):
                        pass
            return self._build(await self._find(run_id, caller), caller)

    @override
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        caller = _get_caller(context)
        with _translated():
            run_id = await self._accept(params, caller)
            async for event in self._stream(run_id, caller):
                yield event

    @override
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        caller = _get_caller(context)
        with _translated():
            status = await self._find(params.id, caller)
            if get_task_state(status) in TERMINAL:
                raise UnsupportedOperationError(message="The task has ended; get it instead")
            async for event in self._stream(params.id, caller):
                yield event

    @override
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        caller = _get_caller(context)
        with _translated():
            task = self._build(await self._find(params.id, caller), caller)
        # In protobuf a missing number reads as 0 too, so its presence has to be checked.
        if params.HasField("history_length") and params.history_length == 0:
            task.ClearField("history")
        return task

    @override
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        caller = _get_caller(context)
        size = params.page_size if params.HasField("page_size") else _PAGE
        if not 1 <= size <= _MAX_PAGE:
            raise InvalidParamsError(message=f"pageSize must be from 1 to {_MAX_PAGE}")
        if params.page_token and not params.page_token.isdecimal():
            raise InvalidParamsError(message="The pageToken is not one of this server")
        with _translated():
            rows = await self._list_rows(params, caller)
            statuses = [await self._get_status(row) for row in rows]
        # 0 is the unspecified state, which asks for no filter.
        if params.status:
            statuses = [status for status in statuses if get_task_state(status) == params.status]
        # A row's number and not an offset: tasks that start between two requests must not shift the pages.
        before = int(params.page_token or 0)
        later = [status for status in statuses if not before or status.row.number < before]
        page = later[:size]
        tasks = [self._build(status, caller) for status in page]
        for task in tasks:
            task.ClearField("history")
            # The protocol leaves artifacts out of lists unless the caller asks for them.
            if not params.include_artifacts:
                task.ClearField("artifacts")
        token = str(page[-1].row.number) if len(later) > size else ""
        return ListTasksResponse(tasks=tasks, next_page_token=token, page_size=size, total_size=len(statuses))

    @override
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        caller = _get_caller(context)
        with _translated():
            status = await self._find(params.id, caller)
            if get_task_state(status) in TERMINAL:
                raise TaskNotCancelableError
            await self._runtime.cancel(params.id, by=caller.user)
            return self._build(await self._find(params.id, caller), caller)

    @override
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        del params
        caller = _get_caller(context)
        with _translated():
            return build_card(self._runtime.host, caller, is_extended=True)

    @override
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        caller = _get_caller(context)
        with _translated():
            status = await self._find(params.task_id, caller)
            if get_task_state(status) in TERMINAL:
                raise UnsupportedOperationError(message="The task has ended; get it instead")
            return await set_config(self._runtime, params.task_id, params, caller=caller)

    @override
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        with _translated():
            await self._find(params.task_id, _get_caller(context))
            return await get_config(self._runtime, params.task_id, params.id)

    @override
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        with _translated():
            await self._find(params.task_id, _get_caller(context))
            configs = await list_configs(self._runtime, params.task_id)
            return ListTaskPushNotificationConfigsResponse(configs=configs)

    @override
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        with _translated():
            await self._find(params.task_id, _get_caller(context))
            await self._runtime.store.outbox.remove_receiver(params.task_id, params.id)

    async def _accept(self, params: SendMessageRequest, caller: Caller) -> str:
        """Start a run or answer one. It is durable before the caller gets a reply."""
        incoming = read_message(params.message)
        push = params.configuration
        wants_push = push.HasField("task_push_notification_config")
        if run_id := params.message.task_id:
            if wants_push:
                # First of all: a receiver must not be attached to a task of another caller.
                await self._find(run_id, caller)
                await set_config(self._runtime, run_id, push.task_push_notification_config, caller=caller)
            await self._answer(run_id, incoming, caller)
            return run_id
        run_id = caller.name_task(params.message.message_id)
        if await self._runtime.store.find_run(run_id) is None:
            request = await self._build_request(run_id, incoming, params.message.context_id, caller=caller)
            if wants_push:  # before the run starts: it may end immediately
                await set_config(self._runtime, run_id, push.task_push_notification_config, caller=caller)
            with suppress(RunExists):  # the same message, sent twice at the same time
                await submit(self._runtime, request, queue=self.state.queue)
            self.state.nudge()
        return run_id

    async def _build_request(self, run_id: str, incoming: Incoming, context_id: str, *, caller: Caller) -> RunRequest:
        request = RunRequest(task=incoming.text, agent=caller.agent)
        if incoming.skill and incoming.skill not in list_skill_ids(self._runtime.host, caller):
            raise UsageError(f"The card of this agent lists no skill {incoming.skill!r}", hint="Get the extended card")
        if incoming.task_id:
            request = request_task(self._runtime.host, incoming.task_id, incoming.values, agent=caller.agent)
        name = caller.name_context(context_id or run_id)
        return replace(
            request,
            context_id=name,
            extra_context=await self._recall(name, caller) if context_id else "",
            run_id=run_id,
            trace_parent=caller.trace_parent,
        )

    async def _recall(self, context_id: str, caller: Caller) -> str:
        """Return the conversation so far, newest last, truncated to the limit."""
        rows = await self._runtime.store.list_runs(context_id=context_id, limit=_PAGE)
        said: list[str] = []
        for row in rows:
            if row.run_id.startswith(caller.prefix) and row.status == "completed":
                result = (await self._runtime.read(row.run_id)).result
                said.append(f"They said:\n{row.task}\n\nYou answered:\n{result}")
        text = "\n\n".join(reversed(said))[-_MAX_CONTEXT_CHARACTERS:]
        return f"Earlier in this conversation:\n\n{text}" if text else ""

    async def _answer(self, run_id: str, incoming: Incoming, caller: Caller) -> None:
        """Answer a question. Approvals are refused: the caller is a program, and only users approve."""
        status = await self._find(run_id, caller)
        if get_task_state(status) != TaskState.TASK_STATE_INPUT_REQUIRED or status.question is None:
            raise UnsupportedOperationError(
                message="The task has no open question; to start a new task, send a message without taskId"
            )
        answer = Answer(values=build_answer(incoming, status.question), by=caller.user)
        check_answer(status, answer)
        try:
            await wake(self._runtime, run_id, answer)
        # The driver has written the question and not released its lease yet.
        except LeaseHeld as held:
            raise UsageError("The run is being driven; send the answer again", hint=str(held)) from held
        self.state.nudge()

    async def _find(self, run_id: str, caller: Caller) -> RunStatus:
        """Return the run. Raises `TaskNotFoundError`, also for a run of another caller or agent."""
        # The same error for both cases, so that a caller can't find out which tasks others have.
        row = await self._runtime.store.find_run(run_id) if run_id.startswith(caller.prefix) else None
        if row is None:
            raise TaskNotFoundError
        return await self._get_status(row)

    async def _get_status(self, row: RunRow) -> RunStatus:
        return await get_status(self._runtime.store, await self._runtime.read(row.run_id), row=row)

    async def _list_rows(self, params: ListTasksRequest, caller: Caller) -> list[RunRow]:
        """List the caller's runs, newest first, up to a limit."""
        context = caller.name_context(params.context_id) if params.context_id else ""
        # The store does not know A2A states, so the filter and the pages are applied to what it returns.
        rows = await self._runtime.store.list_runs(context_id=context, limit=_MAX_LOOKED_AT)
        return [row for row in rows if row.run_id.startswith(caller.prefix)]

    def _build(self, status: RunStatus, caller: Caller) -> Task:
        return build_task(status, caller, clean=build_host_cleaner(self._runtime.host).text)

    async def _stream(self, run_id: str, caller: Caller) -> AsyncGenerator[Event]:
        """Yield the task, then its changes until it ends or waits. A caller that lost the stream subscribes again."""
        is_first = True
        async for status in self._follow(run_id, caller):
            task = self._build(status, caller)
            if is_first:
                is_first = False
                yield task
                continue
            for artifact in task.artifacts:
                # A run has its artifacts at its end only, so each one is complete in a single event.
                yield TaskArtifactUpdateEvent(
                    task_id=task.id, context_id=task.context_id, artifact=artifact, last_chunk=True
                )
            yield TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)

    async def _follow(self, run_id: str, caller: Caller) -> AsyncGenerator[RunStatus]:
        """Yield each change of the state, made by any process, until the run ends or waits."""
        status = await self._find(run_id, caller)
        found = get_task_state(status)
        yield status
        while found not in RESTING:
            await self._runtime.store.wait_for_entries(run_id, after=status.state.seq, seconds=_LOOK_SECONDS)
            row = await self._runtime.store.find_run(run_id)
            if row is not None and row.status == status.row.status == "in_progress":
                continue  # not visible to callers, and reading the journal at every entry would cost too much
            status = await self._find(run_id, caller)
            if (now := get_task_state(status)) != found:
                found = now
                yield status


def _get_caller(context: ServerCallContext) -> Caller:
    caller = context.state[CALLER]
    assert isinstance(caller, Caller)
    return caller


@contextmanager
def _translated() -> Generator[None]:
    """Translate errors of the runtime into those of the protocol."""
    try:
        yield
    except StoreError as error:
        raise InternalError(message=error.message) from error
    except MetierError as error:
        raise InvalidParamsError(message=error.sentence) from error
