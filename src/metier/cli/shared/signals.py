"""Pass signals to the current run's stopper: the first stops it gracefully, the second at once, the third exits."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import anyio

from metier.cli.shared.output import warn_line
from metier.engine.stopper import Stopper

STEP_SECONDS = 0.5
"""Grace period of a running step after Ctrl-C at a terminal, or when the terminal closes."""
MAX_SIGNALS = 2
"""Any further signal exits at once, which is safe: the journal is consistent at every moment."""


type FindStopper = Callable[[], Stopper]
"""The stopper of the current run."""


@asynccontextmanager
async def passing_signals(find_stopper: FindStopper) -> AsyncGenerator[None]:
    """Make signals inside this block stop or suspend the current run instead of the process.

    SIGINT, SIGTERM, SIGQUIT and SIGHUP (on Windows: Ctrl-C and Ctrl-Break) stop it; SIGTSTP suspends it without
    releasing its lease. After a key or SIGHUP a running step gets half a second, after SIGTERM the configured grace.
    """
    if sys.platform == "win32":
        with _console_events(find_stopper):
            yield
        return
    async with anyio.create_task_group() as group:
        # `start` returns when the handlers are installed, so that no signal inside the block ends the process.
        await group.start(_receive, find_stopper)
        yield
        # The receiver never ends by itself.
        group.cancel_scope.cancel()


async def _receive(find_stopper: FindStopper, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGTSTP]
    # Shells start background jobs with SIGQUIT ignored.
    if signal.getsignal(signal.SIGQUIT) != signal.SIG_IGN:
        handled.append(signal.SIGQUIT)
    # `nohup` starts programs with SIGHUP ignored.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    # Before the terminal closes: afterwards `isatty` returns False for its descriptors.
    terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
    with anyio.open_signal_receiver(*handled) as signals:
        task_status.started()
        async for number in signals:
            stopper = find_stopper()
            if number == signal.SIGTSTP:
                await stopper.suspend(stop_process)
                continue
            if number == signal.SIGHUP:
                _redirect_to_null(terminals)
            _stop(stopper, number)


def _stop(stopper: Stopper, number: signal.Signals) -> None:
    if stopper.signals >= MAX_SIGNALS:
        # Skips cleanup on purpose: a normal exit would wait for threads and running steps.
        os._exit(128 + number)
    # Only SIGTERM gets the full grace period. The other signals come from keys or from a terminal that closed, and the
    # user does not wait for the step to end.
    if number != signal.SIGTERM:
        stopper.shorten_grace(STEP_SECONDS)
    stopper.receive(signal.Signals(number).name)
    if stopper.signals == 1:
        warn_line(stopper.describe())


def stop_process() -> None:
    """Stop this process as Ctrl-Z does."""
    # Our handler receives SIGTSTP, so it would not stop the process. To the shell, SIGSTOP looks the same.
    os.kill(os.getpid(), signal.SIGSTOP)


def _redirect_to_null(descriptors: Sequence[int]) -> None:
    """Keep later writes to a closed terminal from failing."""
    with Path(os.devnull).open("r+b", buffering=0) as null:
        for descriptor in descriptors:
            os.dup2(null.fileno(), descriptor)


class _console_events:  # noqa: N801 - a context manager
    """Handles Ctrl-C and Ctrl-Break on Windows, where an event loop cannot wait for signals.

    Handlers interrupt the main thread at any point, so they only schedule a call on the loop, which owns the stopper.
    """

    def __init__(self, find_stopper: FindStopper) -> None:
        self._find_stopper = find_stopper
        self._numbers = [signal.SIGINT, getattr(signal, "SIGBREAK", signal.SIGTERM)]

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()

        def hand_over(number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(lambda: _stop(self._find_stopper(), signal.Signals(number)))

        self._before = [(number, signal.signal(number, hand_over)) for number in self._numbers]

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
