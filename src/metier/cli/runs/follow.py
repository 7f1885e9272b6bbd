"""Show a run while another process, perhaps on another machine, drives it. Only reads."""

import sys

from metier.engine.state import RunState
from metier.runtime.history.following import Follower
from metier.runtime.outcome import find_standing
from metier.runtime.records.exit_codes import FAILED
from metier.runtime.runs import Runtime
from metier.telemetry.sinks import Sink


async def follow_run(runtime: Runtime, run_id: str, sink: Sink) -> int:
    """Show every event until the run ends or waits; the exit code of a command that had driven it."""
    await follow_on(Follower(runtime, run_id), sink)
    sink.close()
    return await find_code(runtime, await runtime.read(run_id))


async def find_code(runtime: Runtime, state: RunState) -> int:
    """The exit code of a command that had driven the run to where it is."""
    if state.status == "in_progress":
        sys.stderr.write(f"No process drives this run any more; `agent resume {state.run_id}` goes on with it\n")
        return FAILED
    return (await find_standing(runtime, state)).find_exit_code()


async def follow_on(follower: Follower, sink: Sink) -> None:
    """Show every event until the run ends or waits."""
    while True:
        news = await follower.look()
        for record in news.records:
            sink.write(record)
        if not news.is_driven:
            return
        await follower.wait()
