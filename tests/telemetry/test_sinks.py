"""Event delivery: numbered, sanitized once, sent to every sink; a broken sink does not block others."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from metier.decisions import ActionStep
from metier.errors import LogError
from metier.events.model import LlmDecisionDecoded, PromptBudgetComputed
from metier.events.payload import Payload
from metier.events.record import EventRecord, parse_record, render_record
from metier.events.run import RunFailed
from metier.events.step import StepStarted
from metier.ids import SystemClock, SystemIds
from metier.telemetry.jsonl import JsonlSink, read_events
from metier.telemetry.options import LoggingOptions
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sinks import EventWriter, FanOut, RunScope, Sink, build_cleaner, get_redaction_mode

MARK = "***REDACTED***"
KEY = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"


class Keeping:
    """A sink that records events and fails from a given number on."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.records: list[EventRecord] = []
        self.fails_at = fails_at

    def write(self, record: EventRecord) -> None:
        if record.seq == self.fails_at:
            raise LogError("The disk is gone")
        self.records.append(record)

    def close(self) -> None:
        if self.fails_at:
            raise OSError("It was never there")


def test_failing_sink_is_disabled_and_reported_once_while_others_continue() -> None:
    first, broken, last = Keeping(), Keeping(fails_at=2), Keeping()
    reports: list[str] = []
    fan_out = FanOut([first, broken, last], report=reports.append)
    writer = _writer(fan_out)

    for number in range(4):
        writer.emit(RunFailed(reason="x", message=str(number)))
    writer.close()

    assert [record.seq for record in first.records] == [1, 2, 3, 4]
    assert last.records == first.records
    assert [record.seq for record in broken.records] == [1]
    assert reports == ["Keeping is disabled: The disk is gone"]


def test_sink_that_cannot_be_closed_is_reported() -> None:
    reports: list[str] = []
    fan_out = FanOut([Keeping(fails_at=9)], report=reports.append)

    fan_out.close()

    assert reports == ["Keeping could not be closed: It was never there"]
    assert fan_out.active == ()


def test_record_has_run_trace_span_number_and_time() -> None:
    kept = Keeping()
    writer = _writer(kept, next_seq=7)

    record = writer.emit(RunFailed(reason="x", message="y"))
    other = writer.emit(RunFailed(reason="x", message="y"))

    assert (record.run_id, record.trace_id, record.parent_span_id, record.seq) == ("r1", "t1", "", 7)
    assert (other.seq, len(other.span_id)) == (8, 16)
    assert parse_record(render_record(record)) == record


def test_every_string_of_a_payload_is_sanitized_at_any_depth() -> None:
    step = ActionStep(type="call_tool", params={"q": KEY, "list": [{"password": "abc", "note": "a\x1b[1mb\x00"}]})

    payload = _emitted(
        LlmDecisionDecoded(turn=1, selected_skill="s", reasoning_summary=f"use {KEY}", planned_actions=(step,)),
    )

    assert isinstance(payload, LlmDecisionDecoded)
    assert payload.reasoning_summary == f"use {MARK}"
    assert payload.planned_actions[0].params == {"q": MARK, "list": [{"password": MARK, "note": "ab\\x00"}]}


def test_names_of_event_fields_are_not_secret_names() -> None:
    options = LoggingOptions(redact_names=("action", "turn"))
    payload = StepStarted(
        step_id="s", action="call_tool", tool="t", idempotency_key="r1:3:0", arguments={"action": "x"}
    )

    cleaned = _emitted(payload, options)

    assert cleaned == replace(payload, arguments={"action": MARK})


def test_counts_by_name_stay_numbers() -> None:
    payload = PromptBudgetComputed(
        turn=1,
        max_context_tokens=1,
        response_headroom_tokens=1,
        allocated_prompt_tokens=1,
        allocated_disclosure_tokens=1,
        layers={"system": 10, "token": 123456},
    )

    assert _emitted(payload) == payload


def test_clean_payload_is_returned_as_the_same_object() -> None:
    payload = RunFailed(reason="x", message="clean\n\ttext")

    assert _emitted(payload) is payload


@pytest.mark.parametrize("redact_secrets", [True, False])
def test_known_values_and_vendor_keys_are_hidden_with_any_options(redact_secrets: bool) -> None:
    options = LoggingOptions(redact_secrets=redact_secrets, sanitize_control_chars=False)

    payload = _emitted(RunFailed(reason="x", message=f"known-value {KEY} password=abc\x1b[1m\ud800"), options)

    password = MARK if redact_secrets else "abc"
    assert isinstance(payload, RunFailed)
    assert payload.message.startswith(f"{MARK} {MARK} password={password}")
    assert get_redaction_mode(options) == ("redacted" if redact_secrets else "full")


def test_value_with_quotes_and_newlines_is_found_in_an_event() -> None:
    value = 'a"b\\c\nd é&f'
    cleaner = build_cleaner(LoggingOptions(), build_redactor(values=[value]))

    for text in (value, json.dumps({"x": value}), json.dumps(json.dumps({"x": value}))):
        cleaned = cleaner.clean(RunFailed(reason="x", message=text))
        assert isinstance(cleaned, RunFailed)
        assert MARK in cleaned.message


def test_lone_surrogate_can_be_logged(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = _writer(JsonlSink.open(path, clock=SystemClock()))

    writer.emit(RunFailed(reason="x", message="a\ud800b"))
    writer.close()

    assert [record.payload for record in read_events(path)] == [RunFailed(reason="x", message="a\\ud800b")]


def _writer(sink: Sink, *, options: LoggingOptions | None = None, next_seq: int = 1) -> EventWriter:
    chosen = options or LoggingOptions()
    scope = RunScope(run_id="r1", trace_id="t1", redaction_mode=get_redaction_mode(chosen))
    redactor = build_redactor(values=["known-value"], names=chosen.redact_names, generic_names=chosen.redact_secrets)
    cleaner = build_cleaner(chosen, redactor)
    return EventWriter(sink, cleaner, scope=scope, clock=SystemClock(), ids=SystemIds(), next_seq=next_seq)


def _emitted(payload: Payload, options: LoggingOptions | None = None) -> Payload:
    return _writer(Keeping(), options=options).emit(payload).payload
