"""Show a run of a server as one that is driven here: the same view, the same result, the same exit code."""

import sys
from typing import cast

from pydantic import JsonValue

from metier.cli.remote.client import Document, Server
from metier.cli.run.live import EVENTS, EventLines, JsonLines, Shown, build_live, write_answer
from metier.cli.shared.output import build_output_redactor, printable, warn_line, write_json, write_json_line
from metier.telemetry.sinks import Sink
from metier.views.live import LiveRun

type OutputFormat = str


def show_run(
    server: Server, run_id: str, *, output: OutputFormat = "text", verbosity: int = 0, quiet: bool = False
) -> int:
    """Follow the run until it ends or waits; the exit code of `agent run`."""
    shown = None if quiet else _build_shown(output, verbosity)
    sinks: list[Sink] = [shown] if shown is not None else []
    if output == "stream-json":
        sinks.append(JsonLines(sys.stdout))
    try:
        for record in server.follow(run_id):
            for sink in sinks:
                sink.write(record)
    except KeyboardInterrupt:
        warn_line(
            f"run:     {run_id} goes on in the server; `agent --server {server.url} runs watch {run_id}` shows it"
        )
        raise
    found = server.get(f"/runs/{run_id}")
    _write(found, shown, output)
    for line in describe_waiting(server, found):
        warn_line(line)
    return int(found["exit_code"])


def describe_waiting(server: Server, found: Document) -> list[str]:
    """What the run waits for, and the commands that go on from here."""
    here = f"agent --server {server.url}"
    lines = [f"error: {found['message']} ({found['reason']})"] if found["exit_code"] not in (0, 3, 4) else []
    lines += [f"waits:   {found['message']}"] if found["exit_code"] in (3, 4) else []
    approvals = cast("list[dict[str, JsonValue]]", found["approvals"])
    lines += [f"approve: {here} approvals approve {each['approval_id']}" for each in approvals]
    if found.get("question"):
        lines.append(f"answer:  {here} runs answer {found['run_id']} --input name=value")
    return lines


def _build_shown(output: OutputFormat, verbosity: int) -> Shown:
    redactor = build_output_redactor()
    if verbosity >= EVENTS:
        return EventLines(sys.stderr, redactor)
    return build_live(redactor, verbosity=verbosity, is_text=output == "text")


def _write(found: Document, shown: Shown | None, output: OutputFormat) -> None:
    if output == "json":
        write_json(found)
    elif output == "stream-json":
        write_json_line({"type": "result", **found})
    elif isinstance(shown, LiveRun) and shown.shows_text:
        shown.show_answer(str(found["result"]))
    elif found["result"]:
        write_answer(printable(str(found["result"])))
    if isinstance(shown, LiveRun):
        shown.show_closing()
    if shown is not None:
        shown.close()
