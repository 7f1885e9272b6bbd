"""Events through redaction, sanitising and the log, one core, against a bare `json.dumps`, write and flush."""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from bench.table import Row
from metier.events.payload import Payload
from metier.events.step import SkillStepExecuted
from metier.ids import SystemClock, SystemIds
from metier.telemetry.jsonl import JsonlSink
from metier.telemetry.options import LoggingOptions
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sinks import EventWriter, RunScope, build_cleaner
from metier.values import dump_fields

COUNT = 50_000
LEAST_PER_SECOND = 15_000
MAX_GROWTH_KIB = 4096
PASSWORD = "correct-horse-battery-staple-42"
PLAIN = "Collected 412 items from the workspace; the report was written to notes/summary.md after 3.2 seconds.\n"
BUSY = (
    "tests/telemetry/test_jsonl_sink.py::test_torn_tail_is_repaired PASSED e3b0c44298fc1c149afbf4c8996fb92427ae41e4\n"
)
CODE = "for name, key in sorted(self._items.items(), key=lambda item: item[0]):\n    yield Token(name, kind=key.kind)\n"
OUTPUT = (
    '{"id": 48213, "name": "item-7", "url": "https://example.org/items/7?sort=name", "ok": true, '
    '"hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "created_at": "2026-01-02T03:04:05Z"}\n'
)
ABROAD = (
    "Die Prüfung ergab 412 Einträge; größere Änderungen: keine. Отчёт записан. 報告書が作成されました。 ✅ naïve café\n"
)
IDS = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6 z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcgSpIdNs6c5 src/metier/telemetry/jsonl.py\n"
SECRET = f"connecting with password={PASSWORD} over https://app:{PASSWORD}@db.test/ \x1b[32mok\x1b[0m\n"


def rows() -> list[Row]:
    """Kinds of text that runs log, the last with secrets and colours in one event of ten."""
    bare = _bare(_payload(PLAIN))
    measured = {
        "plain text": [PLAIN],
        "hashes and paths": [BUSY],
        "ids and base64": [IDS],
        "code": [CODE],
        "JSON of a tool": [OUTPUT],
        "not ASCII": [ABROAD],
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
    return [
        Row(f"events/s, {name}", f"{rate:,.0f}", f"≥ {LEAST_PER_SECOND:,}", rate >= LEAST_PER_SECOND),
        Row(f"events, {name}, × bare json + write", f"{seconds / COUNT / bare:.2f}", "shown", holds=True),
        Row(f"events, {name}, memory growth", f"{growth} KiB", f"≤ {MAX_GROWTH_KIB} KiB", growth <= MAX_GROWTH_KIB),
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
    cleaner = build_cleaner(LoggingOptions(), build_redactor(values=[PASSWORD, "another-known-value-77"]))
    scope = RunScope(run_id="20261115-040225-0a1b2c3d4e5f", trace_id=ids.trace_id())
    return EventWriter(sink, cleaner, scope=scope, clock=clock, ids=ids)


def _bare(payload: Payload) -> float:
    """Seconds per event of the least that any log does."""
    record = {"run_id": "r", "trace_id": "t" * 32, "seq": 1, "payload": dump_fields(payload), "pad": "x" * 100}
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
