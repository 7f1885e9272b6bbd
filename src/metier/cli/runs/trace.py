"""`agent runs export --otlp`: the spans of a run, built from its journal, to a tracing backend."""

from dataclasses import replace
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.shared.place import open_place
from metier.errors import MetierError
from metier.runtime.runs import open_runtime
from metier.runtime.tracing.exporting import RunSpans, build_run_spans
from metier.runtime.tracing.opening import open_exporter


def send_trace(run: str, *, as_json: bool, config: Path | None) -> None:
    """Raises `MetierError` where the endpoint does not take it."""
    # Not live: nothing is driven, and what is sent is sent once.
    place = replace(open_place(config), report=warn_line)
    exporter = open_exporter(place)

    async def work() -> RunSpans:
        async with open_runtime(replace(place, environ={**place.environ, "OTEL_SDK_DISABLED": "true"})) as runtime:
            row = await runtime.find(run)
            found = await build_run_spans(place, runtime.store, row.run_id)
        exporter.export(found.spans, is_first=False)
        if not await run_sync(exporter.flush):
            raise MetierError(
                f"The trace of run {row.run_id!r} was not taken by {exporter.endpoint}",
                hint="Check OTEL_EXPORTER_OTLP_ENDPOINT; sending it again gives the same ids",
            )
        return found

    try:
        found = anyio.run(work)
    finally:
        exporter.close()
    run_id, below = found.runs[0], len(found.runs) - 1
    if as_json:
        write_json(
            {
                "run_id": run_id,
                "trace_id": found.trace_id,
                "runs": list(found.runs),
                "spans": len(found.spans),
                "endpoint": exporter.endpoint,
            }
        )
        return
    more = f" and {below} below it" if below else ""
    write_line(f"{len(found.spans)} spans of run {run_id}{more} sent to {exporter.endpoint}")
    write_line(f"trace: {found.trace_id}")
