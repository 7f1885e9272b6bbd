"""Events through redaction, sanitising and the log, one core, against a bare `json.dumps`, write and flush."""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from bench.table import Row
from metier.events import Payload, SkillStepExecuted
from metier.ids import SystemClock, SystemIds
from metier.telemetry.jsonl import JsonlSink
from metier.telemetry.options import LoggingOptions
from metier.telemetry.sinks import EventWriter, RunScope, build_cleaner

COUNT = 50_000
LEAST_PER_SECOND = 15_000
LEAST_WITH_SECRETS = 5_000
MOST_GROWTH_KIB = 4096
PASSWORD = "correct-horse-battery-staple-42"
PLAIN = "Collected 412 items from the workspace; the report was written to notes/summary.md after 3.2 seconds.\n"
BUSY = (
    "tests/telemetry/test_jsonl_sink.py::test_torn_tail_is_repaired PASSED e3b0c44298fc1c149afbf4c8996fb92427ae41e4\n"
)
SECRET = f"connecting with password={PASSWORD} over https://app:{PASSWORD}@db.test/ \x1b[32mok\x1b[0m\n"


def rows() -> list[Row]:
    """Plain text, text full of hashes and paths, and text where one event in ten holds secrets and colours."""
    bare = _bare(_payload(PLAIN))
    measured = {
        "plain text": [PLAIN],
        "hashes and paths": [BUSY],
        "secrets in one of ten": [SECRET, *[PLAIN] * 9],
    }
    return [row for name, texts in measured.items() for row in _measure(name, texts, bare)]


def _measure(name: str, texts: list[str], bare: float) -> list[Row]:
    payloads = [_payload(text) for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        writer = _writer(Path(folder) / "events.jsonl")
        for number in range(1000):
            writer.emit(payloads[number % len(payloads)])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        for number in range(COUNT):
            writer.emit(payloads[number % len(payloads)])
        seconds = time.process_time() - started
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        writer.close()
    rate = COUNT / seconds
    least = LEAST_WITH_SECRETS if SECRET in texts else LEAST_PER_SECOND
    return [
        Row(f"events/s, {name}", f"{rate:,.0f}", f"≥ {least:,}", rate >= least),
        Row(f"events, {name}, × bare json + write", f"{seconds / COUNT / bare:.2f}", "shown", holds=True),
        Row(f"events, {name}, memory growth", f"{growth} KiB", f"≤ {MOST_GROWTH_KIB} KiB", growth <= MOST_GROWTH_KIB),
    ]


def _payload(text: str) -> Payload:
    stdout = (text * 20)[:640]
    return SkillStepExecuted(
        step_id="step-3",
        action="run_command",
        status="succeeded",
        tool="Bash",
        skill_name="report",
        stdout_summary=stdout,
    )


def _writer(path: Path) -> EventWriter:
    clock, ids = SystemClock(), SystemIds()
    sink = JsonlSink.open(path, clock=clock)
    cleaner = build_cleaner(LoggingOptions(), values=[PASSWORD, "another-known-value-77"])
    scope = RunScope(run_id="20261115-040225-0a1b2c3d4e5f", trace_id=ids.trace_id())
    return EventWriter(sink, cleaner, scope=scope, clock=clock, ids=ids)


def _bare(payload: Payload) -> float:
    """Seconds per event of the least that any log does."""
    record = {"run_id": "r", "trace_id": "t" * 32, "seq": 1, "payload": payload.model_dump(), "pad": "x" * 100}
    with tempfile.TemporaryFile("w") as file:
        started = time.process_time()
        for number in range(COUNT):
            record["seq"] = number
            file.write(json.dumps(record) + "\n")
            file.flush()
        return (time.process_time() - started) / COUNT


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write("\t".join(map(str, row)) + "\n")
