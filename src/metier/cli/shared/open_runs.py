"""The runs that a command works on: those of this workspace or, with `--server URL`, those of a server."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from metier.cli.shared.command_options import get_server_url
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import warn_line
from metier.errors import BrokerUnavailable, unwrapped
from metier.runtime.host import Host
from metier.runtime.queue.wakeups import find_broker, start_worker
from metier.runtime.run_access import LocalRuns, Runs
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.store.base import RunRow


@asynccontextmanager
async def open_runs(config: Path | None, host: Host | None = None) -> AsyncGenerator[Runs]:
    """Open the runs. A `host` that will start runs is opened with its plugins."""
    if url := get_server_url():
        # Imported late: local runs need no HTTP client.
        from metier.cli.shared.server_client import open_server

        async with open_server(url) as server:
            yield server
    elif host is None:
        async with open_runtime(open_host(config)) as runtime:
            yield build_local_runs(runtime, config)
    else:
        with unwrapped(), using_plugins(host, report=warn_line) as extended:
            async with open_runtime(extended) as runtime:
                yield build_local_runs(runtime, config)


def in_runtime[T](host: Host, work: Callable[[Runtime], Awaitable[T]]) -> T:
    """Do the work with the runs of a workspace. Plugins are not loaded, so the work must not start or drive runs."""

    async def open_and_work() -> T:
        async with open_runtime(host) as runtime:
            return await work(runtime)

    return anyio.run(open_and_work)


def build_local_runs(runtime: Runtime, config: Path | None) -> LocalRuns:
    """Build the access to runs of this workspace, which sends messages to workers."""

    def notify(run: RunRow) -> None:
        notify_workers(runtime.host, run.run_id, queue=run.queue, config=config)

    return LocalRuns(runtime=runtime, notify=notify)


def notify_workers(host: Host, run_id: str, *, queue: str, config: Path | None = None) -> None:
    """Send a message to workers or, without a broker, start one in the background if the settings allow it.

    A broker that doesn't answer delays the run and doesn't lose it.
    """
    broker = find_broker(host.settings.worker, host.environ)
    if broker is None:
        start_worker(host, config=config)
        return
    try:
        broker.wake([run_id], queue=queue)
    except BrokerUnavailable as failure:
        warn_line(f"warning: {failure.sentence}")
    finally:
        broker.close()
