"""The handoff to workers by `--detach`: store what a worker needs, wake one up, and report the run's ID."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio

from metier.cli.run.driver import describe_waiting
from metier.cli.shared.options import OutputFormat
from metier.cli.shared.output import warn_line, write_json
from metier.engine.state.run_state import RunState
from metier.errors import BrokerUnavailable, UsageError, unwrapped
from metier.runtime.host import Host
from metier.runtime.queue.autostart import start_worker
from metier.runtime.queue.broker_opening import find_broker
from metier.runtime.queue.detached import can_go_on, get_owner, wake
from metier.runtime.records.run_folders import get_run_folder
from metier.runtime.run_outcome import build_outcome
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.status import RunStatus, get_status
from metier.runtime.workspace.plugins import using_plugins
from metier.store.base import RunRow
from metier.store.failures import LeaseHeld


def detach_run(
    host: Host,
    work: Callable[[Runtime], Awaitable[RunState]],
    output: OutputFormat,
    *,
    config: Path | None = None,
) -> int:
    """Do what is done before a worker takes the run, then tell a worker of it. The id goes to stdout."""
    if output == "stream-json":
        raise UsageError("Cannot show the events of a detached run", hint="Follow it with `agent runs watch`")
    find_broker(host.settings.worker, host.environ)  # what is wrong with it is said before the run begins
    status = anyio.run(_begin, host, work)
    run_id, queue = status.run_id, status.row.queue
    if can_go_on(status.state):
        tell_workers(host, run_id, queue=queue, config=config)
    outcome = build_outcome(status, folder=get_run_folder(host, run_id), exit_code=0)
    if output == "json":
        write_json({**outcome.document, "queue": queue})
    else:
        sys.stdout.write(f"{run_id}\n")
    for line in (*describe_waiting(outcome), f"next:    agent runs watch {run_id}"):
        warn_line(line)
    return 0


async def _begin(host: Host, work: Callable[[Runtime], Awaitable[RunState]]) -> RunStatus:
    with unwrapped(), using_plugins(host, report=warn_line) as extended:
        async with open_runtime(extended) as runtime:
            return await get_status(runtime.store, await work(runtime))
    raise AssertionError("the block above returns or raises")


async def wake_decided_run(runtime: Runtime, run_id: str) -> RunRow | None:
    """Take a decision into a run that belongs to workers, and return it; None for a run that a person drives."""
    owner = await get_owner(runtime, run_id)
    if not owner.queue:
        return None
    with suppress(LeaseHeld):  # its worker is about to let go of it, and a sweep finds the decision
        await wake(runtime, owner.run_id)
    return owner


def tell_workers(host: Host, run_id: str, *, queue: str, config: Path | None = None) -> None:
    """By a message, where there is a broker. One that does not answer delays the run and does not lose it.

    Without a broker a worker is started in the background, where the settings allow it and none is there.
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
