"""Ctrl-C and the like, handed to a run's stopper: the first is graceful, the second is not."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import FrameType

import anyio

from metier.engine.stopping import Stopper


@asynccontextmanager
async def obeying_signals(stopper: Stopper) -> AsyncGenerator[None]:
    """Inside this block SIGINT and SIGTERM (on Windows: Ctrl-C and Ctrl-Break) stop the run instead of the process."""
    if sys.platform == "win32":
        with _console_events(stopper):
            yield
        return
    async with anyio.create_task_group() as group:
        await group.start(_receive, stopper)
        yield
        group.cancel_scope.cancel()


async def _receive(stopper: Stopper, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            stopper.receive(signal.Signals(number).name)


class _console_events:  # noqa: N801 - a context manager
    """Windows has no signals that an event loop could wait for: handlers run between two byte codes of the main thread.

    They hand over to the loop, so that the stopper is only ever touched by it.
    """

    def __init__(self, stopper: Stopper) -> None:
        self._stopper = stopper
        self._numbers = [signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGTERM)]

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()

        def hand_over(number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._stopper.receive, signal.Signals(number).name)

        self._before = [(number, signal.signal(number, hand_over)) for number in self._numbers]

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
