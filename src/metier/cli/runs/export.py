"""`agent runs export` and `agent runs import`: a run as one file.

With `--otlp`, send the spans of its journal to a tracing backend.
"""

import os
from pathlib import Path
from typing import Annotated

import anyio
import typer
from anyio.to_thread import run_sync
from msgspec.structs import replace

from metier.cli.shared.command_options import AsJson, Config, RunName
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import in_runtime, open_runs
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.definitions.files.whole_file import replace_file
from metier.errors import MetierError, UsageError
from metier.runtime.history.archive import load_archive
from metier.runtime.history.run_views import render_shared_run
from metier.runtime.history.transfer import import_run
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.traces import RunSpans, build_run_spans, open_exporter


def send_trace(run: str, *, as_json: bool, config: Path | None) -> None:
    """Send the spans of a run to the OTLP endpoint. Raises `MetierError` if it rejects them."""
    # The exporter below sends the whole trace once; live tracing stays off.
    host = replace(open_host(config), report=warn_line)
    exporter = open_exporter(host)

    async def work() -> RunSpans:
        async with open_runtime(replace(host, environ={**host.environ, "OTEL_SDK_DISABLED": "true"})) as runtime:
            row = await runtime.find(run)
            found = await build_run_spans(host, runtime.store, row.run_id)
        # Not the first time: the run may have been traced while it worked, and metrics must not count it twice.
        exporter.export(found.spans, is_first=False)
        if not await run_sync(exporter.flush):
            raise MetierError(
                f"The trace of run {row.run_id!r} was not taken by {exporter.endpoint}",
                hint="Check OTEL_EXPORTER_OTLP_ENDPOINT; you can send it again safely",
            )
        return found

    try:
        found = anyio.run(work)
    finally:
        exporter.close()
    run_id, children = found.runs[0], len(found.runs) - 1
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
    more = f" and {children} child runs" if children else ""
    write_line(f"{len(found.spans)} spans of run {run_id}{more} sent to {exporter.endpoint}")
    write_line(f"trace: {found.trace_id}")


SUFFIX = ".metier-run"


def export(
    run: RunName,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output file. Default: named after the run.")
    ] = None,
    as_html: Annotated[bool, typer.Option("--html", help="Write a standalone HTML page.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Don't redact: the file will contain secrets.")] = False,
    otlp: Annotated[
        bool,
        typer.Option("--otlp", help="Send a trace to the OTEL_* endpoint instead."),
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Export a run and its child runs to a file.

    An HTML page cannot be imported. With --otlp no file is written.
    """
    if otlp or as_html:
        _check_form(output, otlp=otlp, as_html=as_html, exact=exact)
        if otlp:
            send_trace(run, as_json=as_json, config=config)
        else:
            _export_page(run, output, as_json, config)
        return

    async def work() -> tuple[str, bytes]:
        async with open_runs(config) as runs:
            run_id = (await runs.find(run)).run_id
            return run_id, await runs.export(run_id, exact=exact)

    run_id, data = anyio.run(work)
    path = output or Path(f"{run_id}{SUFFIX}")
    _write(path, data)
    if as_json:
        archive = load_archive(path)
        write_json(
            {
                "run_id": archive.run_id,
                "file": str(path),
                "bytes": len(data),
                "entries": len(archive.entries),
                "blobs": len(archive.blobs),
                "redacted": archive.redacted,
                "children": [child.run_id for child in archive.children],
            }
        )
        return
    if exact:
        warn_line("warning: The file contains all texts unredacted, including secrets")
    write_line(str(path))


def _check_form(output: Path | None, *, otlp: bool, as_html: bool, exact: bool) -> None:
    """Raise `UsageError` for conflicting options."""
    if otlp and (output is not None or exact or as_html):
        raise UsageError("--otlp cannot be combined with -o, --exact or --html", hint="Remove the other options")
    if as_html and exact:
        raise UsageError("--html and --exact are mutually exclusive", hint="Use one of them")


def _export_page(run: str, output: Path | None, as_json: bool, config: Config) -> None:
    async def work(runtime: Runtime) -> tuple[str, str]:
        run_id = (await runtime.find(run)).run_id
        return run_id, await render_shared_run(runtime, run_id)

    run_id, page = in_runtime(open_host(config), work)
    path, data = output or Path(f"{run_id}.html"), page.encode()
    _write(path, data)
    if as_json:
        write_json({"run_id": run_id, "file": str(path), "bytes": len(data)})
    else:
        write_line(str(path))


def import_file(
    file: Annotated[Path, typer.Argument(help="File written by `agent runs export`.")],
    *,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Import a run and its child runs from a file."""
    if not os.path.lexists(file):
        raise UsageError(f"File {str(file)!r} does not exist", hint="Pass a file written by `agent runs export`")
    archive = load_archive(file)

    state = in_runtime(open_host(config), lambda runtime: import_run(runtime, archive))
    if as_json:
        children = [child.run_id for child in archive.children]
        outcome = {"run_id": state.run_id, "status": state.status, "redacted": archive.redacted, "children": children}
        write_json(outcome)
        return
    write_line(f"{state.run_id} is {state.status}")
    for child in archive.children:
        warn_line(f"child:   {child.run_id}")
    warn_line(f"next:    agent replay {state.run_id} --execute")


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a folder", hint="Pass a file with -o")
    try:
        replace_file(path, data)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UsageError(f"'{path}' cannot be written: {reason}", hint="Pass another file with -o") from error
