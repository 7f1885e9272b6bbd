"""Spans folded from a journal, cleaned, and encoded for OTLP: processor time of one span, from entry to bytes."""

import time
from datetime import UTC, datetime, timedelta

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from bench.table import Row
from metier.decisions import ActionStep
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted, ModelReplied
from metier.engine.entries.run import RunStarted
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.trace_spans import SpanFold
from metier.messages import ModelReply, TextPart, Usage
from metier.runtime.traces import clean_span
from metier.telemetry.options import LoggingOptions
from metier.telemetry.otlp_exporter import build_span
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sinks import build_cleaner

TURNS = 3000
MAX_MS = 0.1
BATCH = 512


def rows() -> list[Row]:
    entries = _build_journal()
    cleaner = build_cleaner(LoggingOptions(), build_redactor(values=("correct-horse-battery-staple-42",)))
    resource = Resource.create({"service.name": "metier"})
    fold = SpanFold("20261116-000000-000000000000")
    started = time.process_time()
    spans = [clean_span(span, cleaner) for entry in entries for span in fold.take(entry)]
    for first in range(0, len(spans), BATCH):
        encode_spans([build_span(span, resource) for span in spans[first : first + BATCH]]).SerializeToString()
    spent = (time.process_time() - started) * 1000 / len(spans)
    return [
        Row("traces: one span, folded, cleaned and encoded", f"{spent:.3f} ms CPU", f"≤ {MAX_MS} ms", spent <= MAX_MS)
    ]


def _build_journal() -> list[Entry]:
    now = datetime(2026, 11, 16, tzinfo=UTC)
    reply = ModelReply(
        parts=(TextPart(text="I will look at the file."),),
        stop_reason="tool_calls",
        usage=Usage(input_tokens=1200, output_tokens=50, cache_read_tokens=1000),
        provider="anthropic",
        model="claude-sonnet-4-5",
        response_id="msg_01",
    )
    action = ActionStep(type="call_tool", params={"tool": "Read", "arguments": {"path": "a.py"}}, call_id="call-1")
    entries: list[Entry] = [
        RunStarted(
            task="Look at it",
            provider="anthropic",
            model="claude-sonnet-4-5",
            context_id="c",
            trace_id="0af7651916cd43dd8448eb211c80319c",
            workspace="/",
            started_at=now.isoformat(),
        )
    ]
    for turn in range(1, TURNS + 1):
        at = (now + timedelta(seconds=turn)).isoformat()
        step = f"{turn}.1"
        entries += [
            ModelCallStarted(turn=turn, request_hash="h", prefix_hash="p", estimated_tokens=1, recorded_at=at),
            ModelReplied(turn=turn, reply=reply, recorded_at=at),
            StepStarted(step_id=step, action=action, effect="read", idempotency_key="k", recorded_at=at),
            StepFinished(step_id=step, status="succeeded", text="done", recorded_at=at),
        ]
    return entries
