"""The runs of a workspace for every interface: queries, and the commands start, resume and cancel."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.to_thread import run_sync
from msgspec.structs import replace

from metier.engine.state.run_state import RunState
from metier.providers.connection import SharedClients
from metier.runtime.driver import UNATTENDED, DriveOptions, RunDriver, build_cancellation, build_timeout
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.run_store import open_runs
from metier.runtime.traces import open_live_exporter
from metier.runtime.workspace.agents import BUILT_IN, resolve_agent


class Runtime(RunDriver):
    """The runs of one workspace: the queries of `RunReader`, and the commands."""

    async def start(self, request: RunRequest, options: DriveOptions = UNATTENDED, *, queue: str = "") -> RunState:
        """Start a run and drive it until it ends or waits for the user. Raises `UsageError` before it starts.

        With a `queue`, workers may claim the run once this process hands it back.
        """
        wanted = request.agent or self.host.settings.runtime.agent or BUILT_IN
        agent = resolve_agent(self.host, BUILT_IN if request.order is not None else wanted, model=request.model)
        return await self.start_as(agent, request, options, queue=queue)

    async def cancel(self, run_id: str, *, by: str) -> RunState:
        """Cancel a run. If another process drives it, that process is asked to end it."""
        return await self.end(run_id, build_cancellation(by))

    async def time_out(self, run_id: str, *, seconds: float) -> RunState:
        """End a run whose driver exceeded its timeout. If a process still drives it, that one or the next ends it."""
        return await self.end(run_id, build_timeout(seconds))


@asynccontextmanager
async def open_runtime(host: Host) -> AsyncGenerator[Runtime]:
    """Yield the runs of a workspace."""
    async with open_runs(host) as store:
        clients, traces = SharedClients(), open_live_exporter(host)
        try:
            yield Runtime(replace(host, clients=clients, traces=traces), store)
        finally:
            # Shielded: a cancellation must not lose the last spans or leave connections open.
            with anyio.CancelScope(shield=True):
                await clients.aclose()
                if traces is not None:
                    await run_sync(traces.close)
