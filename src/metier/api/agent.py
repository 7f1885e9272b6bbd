"""The agent of a workspace, for Python programs: open it, run tasks, answer and approve, or run one task blocking."""

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypedDict, Unpack, cast, overload

import anyio
from anyio.abc import TaskGroup
from anyio.from_thread import start_blocking_portal
from msgspec.structs import replace
from pydantic import JsonValue

from metier.api.results import Approval, Decision, OutputForm, RunResult, build_result, describe_approval, read_form
from metier.api.stream import EventFeed, RunStream, Stoppable
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.ids import get_user
from metier.providers.base import Provider
from metier.runtime.answers import Answer, RaisedLimits, check_answer
from metier.runtime.approval_questions import ApprovalQuestion as OpenApproval
from metier.runtime.approval_questions import Reply
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.driver import DriveOptions
from metier.runtime.host import Host
from metier.runtime.opened_host import open_host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.status import RunStatus
from metier.runtime.workspace.plugins import using_plugins
from metier.tools.base import Tool
from metier.tools.function_tool import as_tool
from metier.views.user_question import DEFAULT_FIELD

logger = logging.getLogger("metier")

_POLL_SECONDS = 0.1
"""Interval at which a blocking run checks whether its caller was canceled."""

type Verdict = bool | Decision | None
"""`True` approves, `False` denies, `None` leaves the run waiting."""
type Approver = Callable[[Approval], Verdict | Awaitable[Verdict]]
"""Asked about each call that needs an approval."""
type ToolLike = Tool | Callable[..., object]
type Schema = Mapping[str, object]
"""A JSON schema."""
type Work = Callable[[DriveOptions], Awaitable[RunState]]
type Doubt = Literal["done", "retry", "skip", "abort"]


@asynccontextmanager
async def open_agent(
    path: str | os.PathLike[str] = ".",
    *,
    provider: str | Provider | None = None,
    model: str = "",
    tools: Iterable[ToolLike] = (),
    approve: Approver | None = None,
    settings: Mapping[str, object] | None = None,
) -> AsyncGenerator["Agent"]:
    """Open the agent of a workspace, with its `agent.yaml`, skills, tasks and rules.

        async with metier.open(".", provider="offline") as agent:
            result = await agent.run("Greet everybody")

    `provider` is the name of a provider or a provider object. `tools` are functions, plain or made by
    `metier.tool`. `approve` is asked about calls that need an approval; without it a run waits. `settings` override
    `agent.yaml` by dotted key: `{"runtime.max_turns": 20}`.

    Raises `ConfigError` with every problem of the settings, and `StoreError` if the run store is unavailable.
    """
    host = _build_host(path, provider, model=model, tools=tools, settings=settings or {})
    with using_plugins(host, report=logger.warning) as extended:
        async with open_runtime(extended) as runtime:
            failure: BaseException | None = None
            async with anyio.create_task_group() as group:
                agent = Agent(runtime, group, approve=approve)
                try:
                    yield agent
                # Raised after the group has ended, which would wrap it in an exception group.
                except BaseException as error:  # noqa: BLE001
                    failure = error
                # Streams that were left early record their pause before their tasks are canceled.
                await agent.close()
                group.cancel_scope.cancel()
            if failure is not None:
                raise failure


class Agent:
    """The runs of one workspace. Created by `metier.open`; several runs can be driven at the same time."""

    def __init__(self, runtime: Runtime, group: TaskGroup, *, approve: Approver | None) -> None:
        self._runtime = runtime
        self._group = group
        self._approve = approve
        self._user = get_user()
        self._streams: list[Stoppable] = []

    @overload
    async def run[T](
        self,
        task: str,
        *,
        output_schema: type[T],
        agent: str = "",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> RunResult[T]: ...

    @overload
    async def run(
        self,
        task: str,
        *,
        output_schema: Schema | None = None,
        agent: str = "",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> RunResult[JsonValue]: ...

    async def run[T](
        self,
        task: str,
        *,
        output_schema: type[T] | Schema | None = None,
        agent: str = "",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> RunResult[T]:
        """Run a task until it ends or waits for an approval or an answer.

        `output_schema` is a pydantic model, another Python type or a JSON schema for the result, `agent` the ID of an
        agent definition, `context` extra input for the task.

        Raises `UsageError` before the run starts. The outcome of a started run is in the result.
        """
        form = read_form(output_schema)
        request = _build_request(task, form, agent=agent, context=context)
        return await self._drive(
            lambda watch: self._runtime.start(request, watch), form, DriveOptions(timeout_seconds=timeout_seconds)
        )

    @overload
    def stream[T](
        self,
        task: str,
        *,
        output_schema: type[T],
        agent: str = "",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> RunStream[T]: ...

    @overload
    def stream(
        self,
        task: str,
        *,
        output_schema: Schema | None = None,
        agent: str = "",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> RunStream[JsonValue]: ...

    def stream[T](
        self,
        task: str,
        *,
        output_schema: type[T] | Schema | None = None,
        agent: str = "",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> RunStream[T]:
        """Run a task like `run`, and iterate over its events. Then read `result`.

            async with agent.stream("Greet everybody") as events:
                async for event in events:
                    print(event)
            print(events.result.text)

        An event is an `Event` with a typed payload, or a `TextDelta` while a reply arrives.
        """
        form = read_form(output_schema)
        request = _build_request(task, form, agent=agent, context=context)

        host = self._runtime.host
        feed = EventFeed(build_host_redactor(host))
        stopper = Stopper(host.settings.runtime.signal_grace_seconds, waits_for_model=False)
        watch = DriveOptions(sinks=(feed,), observe=feed.observe, stopper=stopper, timeout_seconds=timeout_seconds)

        async def drive() -> RunResult[T]:
            return await self._drive(lambda watching: self._runtime.start(request, watching), form, watch)

        stream = RunStream(drive, self._group.start_soon, feed=feed, stopper=stopper)
        self._streams.append(stream)
        return stream

    @overload
    async def resume[T](
        self,
        run_id: str,
        *,
        output_schema: type[T],
        doubt: Doubt | None = None,
        max_turns: int | None = None,
        max_cost_usd: float | None = None,
    ) -> RunResult[T]: ...

    @overload
    async def resume(
        self,
        run_id: str,
        *,
        output_schema: Schema | None = None,
        doubt: Doubt | None = None,
        max_turns: int | None = None,
        max_cost_usd: float | None = None,
    ) -> RunResult[JsonValue]: ...

    async def resume[T](
        self,
        run_id: str,
        *,
        output_schema: type[T] | Schema | None = None,
        doubt: Doubt | None = None,
        max_turns: int | None = None,
        max_cost_usd: float | None = None,
    ) -> RunResult[T]:
        """Continue a run after an approval, a crash or a limit. An ended run stays unchanged.

        `run_id` is an ID, the beginning of one, or `latest`. `doubt` resolves a step with unknown outcome.
        Pass the `output_schema` that the run was started with to get a `value` of the same type.

        Raises `RunUnknown`, `LeaseHeld` if another process drives the run, and `UsageError`.
        """
        answer = Answer(doubt=doubt, raised=RaisedLimits(max_turns=max_turns, max_cost_usd=max_cost_usd))
        return await self._continue(run_id, answer, read_form(output_schema))

    @overload
    async def answer[T](
        self, run_id: str, values: Mapping[str, JsonValue] | str, *, output_schema: type[T]
    ) -> RunResult[T]: ...

    @overload
    async def answer(
        self, run_id: str, values: Mapping[str, JsonValue] | str, *, output_schema: Schema | None = None
    ) -> RunResult[JsonValue]: ...

    async def answer[T](
        self,
        run_id: str,
        values: Mapping[str, JsonValue] | str,
        *,
        output_schema: type[T] | Schema | None = None,
    ) -> RunResult[T]:
        """Answer a run's question and continue the run. A text answers the first field.

        Raises `UsageError` if the run asks nothing or other fields.
        """
        if isinstance(values, str):
            question = (await self._get_status(run_id)).question
            values = {question.names[0] if question is not None else DEFAULT_FIELD: values}
        return await self._continue(run_id, Answer(values=dict(values)), read_form(output_schema))

    async def approvals(self, run_id: str = "") -> list[Approval]:
        """List the pending approvals of one run or of all, oldest first."""
        found = await self._runtime.approvals.list_all(run_id=run_id, status="open")
        return [describe_approval(each) for each in found]

    async def approve(
        self, approval: Approval | str, *, arguments: Mapping[str, JsonValue] | None = None, reason: str = ""
    ) -> None:
        """Approve a call, optionally with other arguments. Continue its run with `resume`.

        Raises `ApprovalClosed` if it was decided before.
        """
        await self._decide(approval, Decision(approved=True, reason=reason, arguments=arguments))

    async def deny(self, approval: Approval | str, *, reason: str = "") -> None:
        """Deny a call. The model reads the reason when its run continues. Raises `ApprovalClosed`."""
        await self._decide(approval, Decision(approved=False, reason=reason))

    async def cancel(self, run_id: str) -> RunResult[JsonValue]:
        """Cancel a run. If another process drives it, that process is asked to end it."""
        found = await self._runtime.find(run_id)
        state = await self._runtime.cancel(found.run_id, by=self._user)
        return await build_result(self._runtime, state, None)

    async def close(self) -> None:
        """Pause the runs of streams that were left early. `metier.open` calls it at the end of its block."""
        for stream in self._streams:
            await stream.stop()

    async def _drive[T](self, work: Work, form: OutputForm[T] | None, watch: DriveOptions) -> RunResult[T]:
        ask = self._ask if self._approve is not None else None
        state = await work(replace(watch, ask=ask, report=logger.warning))
        return await build_result(self._runtime, state, form)

    async def _continue[T](self, run_id: str, answer: Answer, form: OutputForm[T] | None) -> RunResult[T]:
        given = replace(answer, by=self._user, reopens=True)
        found = await self._runtime.find(run_id)
        # If another process drives the run, `resume` reports that conflict instead of an invalid answer.
        if not found.driver:
            check_answer(await self._get_status(found.run_id), given)
        return await self._drive(lambda watch: self._runtime.resume(found.run_id, given, watch), form, DriveOptions())

    async def _get_status(self, run_id: str) -> RunStatus:
        return await self._runtime.get_status((await self._runtime.find(run_id)).run_id)

    async def _ask(self, question: OpenApproval) -> Reply | None:
        """Ask the program's function about an approval."""
        assert self._approve is not None, "asked only where there is one"
        verdict = self._approve(describe_approval(question))
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if isinstance(verdict, bool):
            verdict = Decision(approved=verdict)
        return None if verdict is None else self._build_reply(verdict)

    async def _decide(self, approval: Approval | str, decision: Decision) -> None:
        approval_id = approval if isinstance(approval, str) else approval.approval_id
        question = await self._runtime.approvals.get(approval_id)
        await self._runtime.approvals.decide(question, self._build_reply(decision))

    def _build_reply(self, decision: Decision) -> Reply:
        return Reply(
            decision="approved" if decision.approved else "denied",
            by=self._user,
            reason=decision.reason,
            arguments=dict(decision.arguments) if decision.arguments is not None else None,
            remember=decision.remember,
        )


def _build_request[T](task: str, form: OutputForm[T] | None, *, agent: str, context: str) -> RunRequest:
    return RunRequest(task=task, agent=agent, extra_context=context, output_schema=form.schema if form else None)


def _build_host(
    path: str | os.PathLike[str],
    provider: str | Provider | None,
    *,
    model: str,
    tools: Iterable[ToolLike],
    settings: Mapping[str, object],
) -> Host:
    flags = {key: _write_setting(value) for key, value in settings.items()}
    if isinstance(provider, str):
        flags["model.provider"] = provider
    if model:
        flags["model.name"] = model
    opened = open_host(Path(path).resolve(), environ=os.environ, home=Path.home(), flags=flags, config=None)
    for problem in opened.warnings:
        logger.warning(problem.render())
    return replace(
        opened.host,
        provider=None if isinstance(provider, str) else provider,
        tools=tuple(as_tool(each) for each in tools),
        # A library leaves stdout and stderr to its program, so warnings go to the logger.
        report=logger.warning,
    )


def _write_setting(value: object) -> str:
    """Write a value the way a command-line flag does."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(cast("Iterable[str]", value)) if isinstance(value, list | tuple) else str(value)


class OpenOptions(TypedDict, total=False):
    """The parameters of `metier.open`."""

    provider: str | Provider | None
    model: str
    tools: Iterable[ToolLike]
    approve: Approver | None
    settings: Mapping[str, object] | None


@overload
def run_sync[T](
    task: str, *, output_schema: type[T], path: str = ".", agent: str = "", **options: Unpack[OpenOptions]
) -> RunResult[T]: ...


@overload
def run_sync(
    task: str, *, output_schema: Schema | None = None, path: str = ".", agent: str = "", **options: Unpack[OpenOptions]
) -> RunResult[JsonValue]: ...


def run_sync[T](
    task: str,
    *,
    output_schema: type[T] | Schema | None = None,
    path: str = ".",
    agent: str = "",
    **options: Unpack[OpenOptions],
) -> RunResult[T] | RunResult[JsonValue]:
    """Open the agent of a folder, run one task, and return when it ends or waits for a user.

        result = metier.run_sync("Greet everybody", provider="offline")

    `options` are those of `metier.open`. Inside a running event loop, as in a notebook, the run gets its own loop in
    another thread, which calls `tools` and `approve`; the calling loop is blocked meanwhile. Ctrl-C
    interrupts the run; continue it with `Agent.resume`.
    """

    async def work() -> RunResult[T] | RunResult[JsonValue]:
        async with open_agent(path, **options) as opened:
            if output_schema is None or isinstance(output_schema, Mapping):
                return await opened.run(task, agent=agent, output_schema=output_schema)
            return await opened.run(task, agent=agent, output_schema=output_schema)

    return _run_to_end(work)


def _run_to_end[Result](work: Callable[[], Awaitable[Result]]) -> Result:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # No loop is running in this thread, as in most scripts.
        return anyio.run(work)
    caller = asyncio.current_task()
    with start_blocking_portal() as portal:
        future = portal.start_task_soon(work)
        try:
            while not wait([future], timeout=_POLL_SECONDS).done:
                # `asyncio.run` handles Ctrl-C by canceling the task that is blocked here.
                if caller is not None and caller.cancelling():
                    raise asyncio.CancelledError
            return future.result()
        except BaseException:
            # Ctrl-C arrives in this thread. The run in the other thread must pause or end before the caller continues.
            future.cancel()
            raise
