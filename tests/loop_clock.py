"""The clock of the running event loop, advanced by tests to trigger time limits."""

import asyncio


def advance(seconds: float) -> None:
    """Let `seconds` pass for all timers of the running loop.

    A test of a time limit chooses one that no machine reaches, waits until the program under test is where it should
    be, and then calls this. With a short limit the program might not have started when it passes.
    """
    loop = asyncio.get_running_loop()
    earlier = loop.time
    setattr(loop, "time", lambda: earlier() + seconds)  # noqa: B010 - a method cannot be assigned
