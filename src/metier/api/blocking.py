"""A blocking run, for programs without an event loop and for notebooks, whose event loop is running."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import wait
from typing import TypedDict, Unpack, overload

import anyio
from anyio.from_thread import start_blocking_portal
from pydantic import JsonValue

from metier.api.agent import Approver, Schema, ToolLike, open_agent
from metier.api.results import RunResult
from metier.providers.base import Provider

_LOOK_SECONDS = 0.1


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
        return anyio.run(work)
    caller = asyncio.current_task()
    with start_blocking_portal() as portal:
        future = portal.start_task_soon(work)
        try:
            while not wait([future], timeout=_LOOK_SECONDS).done:
                # `asyncio.run` handles Ctrl-C by canceling the task that is blocked here.
                if caller is not None and caller.cancelling():
                    raise asyncio.CancelledError
            return future.result()
        except BaseException:
            # Ctrl-C arrives in this thread. The run in the other thread must pause or end before the caller continues.
            future.cancel()
            raise
