"""What can end a run from outside while it is driven: its time limit, and somebody who cancels it."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from metier.engine.entries import RunFailed
from metier.engine.stopping import Stopper

CANCEL_FILE = "cancel.request"
"""Its presence in a run folder asks whoever drives the run to end it; it holds who asked."""
POLL_SECONDS = 0.2


@asynccontextmanager
async def bounded(stopper: Stopper, folder: Path, *, timeout_seconds: float | None) -> AsyncGenerator[None]:
    """Inside this block the stopper is told of a cancellation or of time running out."""
    async with anyio.create_task_group() as group:
        group.start_soon(_obey_cancellation, stopper, folder)
        if timeout_seconds is not None:
            group.start_soon(_end_in_time, stopper, timeout_seconds)
        yield
        group.cancel_scope.cancel()


def ask_to_cancel(folder: Path, *, by: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{CANCEL_FILE}.{os.getpid()}"
    temporary.write_text(by, encoding="utf-8")
    temporary.replace(folder / CANCEL_FILE)


def forget_cancellation(folder: Path) -> None:
    (folder / CANCEL_FILE).unlink(missing_ok=True)


def build_cancellation(by: str) -> RunFailed:
    return RunFailed(reason="canceled", message=f"Canceled by {by or 'somebody'}", status="canceled")


def build_timeout(seconds: float) -> RunFailed:
    return RunFailed(reason="run_timeout", message=f"The run took longer than {seconds:g} s", status="timeout")


async def _obey_cancellation(stopper: Stopper, folder: Path) -> None:
    file = folder / CANCEL_FILE
    while not file.exists():  # noqa: ASYNC110 - another process makes the file; a look costs microseconds
        await anyio.sleep(POLL_SECONDS)
    stopper.fail(build_cancellation(file.read_text(encoding="utf-8", errors="replace")))


async def _end_in_time(stopper: Stopper, seconds: float) -> None:
    await anyio.sleep(seconds)
    stopper.fail(build_timeout(seconds))
