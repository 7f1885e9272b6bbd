"""The runs of a workspace for every interface: queries, and the commands start, resume and cancel."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from anyio.to_thread import run_sync
from msgspec.structs import replace

from metier.engine.journal import RunLog
from metier.engine.state.run_state import RunState
from metier.providers.connection import SharedClients
from metier.runtime.confinement import open_confinement
from metier.runtime.driver import DriveOptions, RunDriver, build_cancellation, build_timeout
from metier.runtime.host import Host
from metier.runtime.notify.announcements import check_notify
from metier.runtime.questions.answers import Answer
from metier.runtime.reader import RunReader
from metier.runtime.requests import RunRequest, check_output_schema
from metier.runtime.run_store import open_runs
from metier.runtime.traces import open_live_exporter
from metier.runtime.workspace.agents import BUILT_IN, ResolvedAgent, resolve_agent
from metier.store.base import Store


class Runtime(RunReader):
    """The commands on the runs of one workspace, together with the queries of `RunReader`."""

    def __init__(self, host: Host, store: Store, *, driver: type[RunDriver] = RunDriver) -> None:
        super().__init__(host, store)
        self._driver = driver(self)

    async def start(self, request: RunRequest, options: DriveOptions | None = None, *, queue: str = "") -> RunState:
        """Start a run and drive it until it ends or waits for the user. Raises `UsageError` before it starts.

        With a `queue`, workers may claim the run once this process hands it back.
        """
        wanted = request.agent or self.host.settings.runtime.agent or BUILT_IN
        agent = resolve_agent(self.host, BUILT_IN if request.order is not None else wanted, model=request.model)
        return await self.start_as(agent, request, options, queue=queue)

    async def start_as(
        self, agent: ResolvedAgent, request: RunRequest, options: DriveOptions | None = None, *, queue: str = ""
    ) -> RunState:
        """Start a run with a resolved agent."""
        check_notify(self.host)
        if request.output_schema is not None:
            await run_sync(check_output_schema, request.output_schema)
        if request.mode == "live":
            await open_confinement(agent.host)
        run_id = request.run_id or self.host.ids.run_id(self.host.clock.now())
        return await self._driver.start(run_id, request, options or DriveOptions(), agent=agent, queue=queue)

    async def start_child(self, run_id: str, request: RunRequest, options: DriveOptions | None = None) -> RunState:
        """Start a run whose ID derives from its request. Raises `RunExists` if it has started."""
        return await self._driver.start_child(run_id, request, options or DriveOptions())

    async def resume(self, run_id: str, answer: Answer | None = None, options: DriveOptions | None = None) -> RunState:
        """Continue a run after an answer, an approval, a signal or a crash. An ended run stays unchanged."""
        return await self._driver.resume(run_id, answer, options or DriveOptions())

    async def cancel(self, run_id: str, *, by: str) -> RunState:
        """Cancel a run. If another process drives it, that process is asked to end it."""
        return await self._driver.end(run_id, build_cancellation(by))

    async def time_out(self, run_id: str, *, seconds: float) -> RunState:
        """End a run whose driver exceeded its timeout. If a process still drives it, that one or the next ends it."""
        return await self._driver.end(run_id, build_timeout(seconds))

    async def delete_unstarted(self, run_id: str) -> None:
        """Delete a row without a journal, as earlier versions created before the start of a run."""
        await self._driver.delete_unstarted(run_id)

    def writing(self, run_id: str) -> AbstractAsyncContextManager[RunLog]:
        """Hold the lease and the log of a run without driving it."""
        return self._driver.writing(run_id)


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
