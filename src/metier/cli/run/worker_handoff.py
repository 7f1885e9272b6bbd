"""Runs in the background or on a server: start or answer one, then print its ID or follow it."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from msgspec.structs import replace

from metier.cli.run.driver import View, build_shown, describe_waiting, write_outcome
from metier.cli.run.live import JsonLines, ticking
from metier.cli.shared.open_runs import open_runs
from metier.cli.shared.options import get_server_url
from metier.cli.shared.output import build_output_redactor, warn_line, write_json
from metier.errors import UsageError
from metier.events.partial import Partial, PartialSink
from metier.events.record import EventRecord
from metier.runtime.host import Host
from metier.runtime.run_access import Runs
from metier.runtime.run_outcome import RunOutcome
from metier.telemetry.sinks import Sink

type Work = Callable[[Runs], Awaitable[str]]
"""Starts or answers a run and returns its ID."""


def run_in_background(
    work: Work, view: View, *, detaches: bool, host: Host | None = None, config: Path | None = None
) -> int:
    """Print the ID of the run, or follow the run until it ends or waits. `host` is None for a server."""
    if detaches and view.output == "stream-json":
        raise UsageError("Cannot show the events of a detached run", hint="Follow it with `agent runs watch`")
    redactor = build_output_redactor()
    shown = build_shown(view, redactor) if host is None and not detaches else None
    run_id = ""

    async def work_and_follow() -> tuple[RunOutcome, str]:
        nonlocal run_id
        async with open_runs(config, host) as runs:
            run_id = await work(runs)
            if not detaches:
                with ticking(shown):
                    await runs.follow(run_id, _Tee([*([shown] if shown is not None else []), *_list_sinks(view)]))
            return await runs.get_outcome(run_id), (await runs.find(run_id)).queue

    try:
        outcome, queue = anyio.run(work_and_follow)
    except KeyboardInterrupt:
        if run_id:
            warn_line(f"run:     {run_id} continues on the server\nnext:    {_render_watch(run_id)}")
        raise
    if detaches:
        _write_detached(outcome, view, queue=queue)
        return 0
    write_outcome(outcome, replace(view, shown=shown), redactor=redactor)
    return outcome.exit_code


def _write_detached(outcome: RunOutcome, view: View, *, queue: str) -> None:
    if view.output == "json":
        write_json({**outcome.document, "exit_code": 0, "queue": queue})
    else:
        sys.stdout.write(f"{outcome.run_id}\n")
    for line in (*describe_waiting(outcome), f"next:    {_render_watch(outcome.run_id)}"):
        warn_line(line)


def _render_watch(run_id: str) -> str:
    server = f"--server {url} " if (url := get_server_url()) else ""
    return f"agent {server}runs watch {run_id}"


def _list_sinks(view: View) -> list[Sink]:
    return [JsonLines(sys.stdout, with_partials=view.with_partials)] if view.output == "stream-json" else []


class _Tee:
    """Writes to several sinks and does not close them."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def write(self, record: EventRecord) -> None:
        for sink in self._sinks:
            sink.write(record)

    def show_partial(self, partial: Partial) -> None:
        for sink in self._sinks:
            if isinstance(sink, PartialSink):
                sink.show_partial(partial)

    def close(self) -> None:
        return None
