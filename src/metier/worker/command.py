"""`agent worker`: drive background runs, from a broker (`celery_worker`) or by claiming them from the store."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from metier.errors import UsageError, unwrapped
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.host import Host
from metier.runtime.opened_host import open_host
from metier.runtime.queue.pool import Job, RunPool
from metier.runtime.queue.wakeups import find_broker, hold_worker_lock
from metier.runtime.runs import open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.settings.discovery import get_workspace
from metier.telemetry.sanitize import sanitize_line

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def worker(
    *,
    queue: Annotated[str | None, typer.Option("--queue", help="Queue name. Default: worker.queue.")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Maximum parallel runs. Default: worker.concurrency.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Run everything that is ready, then exit.")] = False,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when idle. Only one such worker runs.")
    ] = False,
    config: Annotated[Path | None, typer.Option("--config", help="Settings file.")] = None,
) -> int:
    """Start a worker for background runs.

    With AGENT_WORKER_BROKER_URL or CELERY_BROKER_URL it takes runs from the broker, otherwise from the run store.
    The first SIGTERM or Ctrl-C releases runs after the current step, the second one immediately.
    """
    flags = {"worker.queue": queue, "worker.concurrency": concurrency}
    host = _open_host(config, {key: str(value) for key, value in flags.items() if value is not None})
    redact = build_host_redactor(host).redact

    def report(text: str) -> None:
        sys.stderr.write(f"worker: {sanitize_line(redact(text))}\n")
        sys.stderr.flush()

    job = Job(host=host, report=report, fires=queue is None)
    broker = None if once else find_broker(host.settings.worker, host.environ)
    if broker is None and until_idle and not once:
        run_until_idle(job)
        return 0
    if broker is None:
        report(f"takes runs of queue {job.queue!r} from the {host.settings.store.backend} store")
        run_store_worker(job, once=once)
        return 0
    address = broker.address
    broker.close()
    if sys.platform == "win32":
        raise UsageError("A worker with a broker needs processes that Windows does not have", hint="Unset the broker")
    # Imported here because Celery is optional.
    from metier.worker.celery_worker import run_celery_worker

    report(f"takes runs of queue {job.queue!r} from broker {address.shown}")
    return run_celery_worker(job, address)


def _open_host(config: Path | None, flags: dict[str, str]) -> Host:
    folder = get_workspace(Path.cwd(), home=Path.home())
    config = config.absolute() if config is not None and folder != Path.cwd() else config
    opened = open_host(folder, environ=os.environ, home=Path.home(), flags=flags, config=config)
    for problem in opened.warnings:
        sys.stderr.write(f"{problem.render()}\n")
    return opened.host


def run_until_idle(job: Job) -> None:
    """Run as the self-started worker: only one runs at a time, and it exits when it is idle."""
    while True:
        with hold_worker_lock(job.host) as is_held:
            if not is_held:
                return
            anyio.run(partial(work_from_store, job, idle_seconds=job.options.idle_seconds))
        # Only after the lock is released: a command that saw the lock held has stored its run before.
        if not anyio.run(has_work, job):
            return


async def has_work(job: Job) -> bool:
    async with open_runtime(job.host) as runtime:
        return bool(await runtime.store.list_stale(queue=job.queue, limit=1))


def run_store_worker(job: Job, *, once: bool = False) -> None:
    """Drive the runs of the queue until a signal arrives; with `once`, until none of them can continue."""
    anyio.run(partial(work_from_store, job, once=once))


async def work_from_store(job: Job, *, once: bool = False, idle_seconds: float | None = None) -> None:
    with unwrapped(), using_plugins(job.host, report=job.report) as host:
        async with open_runtime(host) as runtime, anyio.create_task_group() as helpers:
            pool = RunPool(job, runtime, job.options.concurrency, idle_seconds=idle_seconds)
            await helpers.start(_obey_signals, pool)
            await pool.work(once=once)
            helpers.cancel_scope.cancel()


async def _obey_signals(pool: RunPool, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """On the first signal, let running steps finish in their grace period; on the second, stop them."""
    if sys.platform == "win32":
        task_status.started()
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            pool.leave(signal.Signals(number).name)
