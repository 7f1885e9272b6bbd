"""The one door from plain code into the async core: run a coroutine to its end and give what came of it."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from metier.errors import UsageError


def run_blocking[*Args, Result](work: Callable[[*Args], Awaitable[Result]], *args: *Args) -> Result:
    """Raises `UsageError` in an event loop, where waiting would stop everything else."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(work, *args)
    raise UsageError(
        "A skill was called without await by code that runs in an event loop",
        hint="Await `run_once` or `take_turn` instead, or call it from a worker thread",
    )
