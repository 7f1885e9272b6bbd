"""The live stream: every event type has a text, outside text cannot break a line, plain if required."""

import io
import os
import pty
from typing import Annotated, get_args, get_origin

import pytest
from msgspec import Struct, convert
from msgspec.structs import FieldInfo, fields

from metier.events.model import LlmDecisionDecoded, LlmRequestMeta
from metier.events.payload import Payload
from metier.events.record import EventRecord, payload_types
from metier.events.run import RunFailed, RunStarted
from metier.events.step import SkillStepExecuted
from metier.events.task import ChildRunFinished, TaskPlanned
from metier.ids import SystemClock
from metier.telemetry.console import WORDINGS, ConsoleSink


@pytest.mark.parametrize("payload_type", payload_types().values(), ids=payload_types().keys())
def test_every_event_type_has_a_line(payload_type: type[Payload]) -> None:
    stream = io.StringIO()
    payload = convert(_fields(payload_type), payload_type)

    ConsoleSink(stream, level="debug").write(_record(payload))

    assert payload_type.event_type in WORDINGS
    assert payload_type.event_type in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_line_shows_trace_turn_skill_action_and_status() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)

    sink.write(_record(LlmDecisionDecoded(turn=3, selected_skill="notes", reasoning_summary="tidy")))
    sink.write(_record(SkillStepExecuted(step_id="s", action="call_tool", status="failed", tool="Bash")))
    sink.close()

    last = stream.getvalue().splitlines()[-1].split()
    assert last[1:] == ["abcdef01", "turn", "3", "notes", "skill_step_executed", "failed", "call_tool", "Bash"]


def test_values_in_a_line_are_formatted_for_people() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream, level="debug")

    sink.write(_record(TaskPlanned(task_id="pack", steps=("TASK.md", "second.md"))))
    sink.write(_record(ChildRunFinished(step_id="1.1", child_run_id="c", status="completed", turns=1, cost_usd=None)))

    planned, child = stream.getvalue().splitlines()
    assert planned.endswith("pack: TASK.md, second.md")
    assert child.endswith("c, 1 turn, cost unknown")


def test_outside_text_cannot_break_or_color_a_line() -> None:
    stream = io.StringIO()

    ConsoleSink(stream).write(_record(RunFailed(reason="x", message="a\nerror: fake\x1b[2J\x1b]0;t\x07\r[red]b")))

    assert stream.getvalue().endswith("x: a\\nerror: fake\\x1b]0…\\r[red]b\n")


def test_level_hides_less_important_events() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream, level="error")

    sink.write(_record(RunStarted(task="quiet")))
    sink.write(_record(RunFailed(reason="x", message="loud")))

    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_terminal_output_is_colored_unless_disabled(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    reader, writer = pty.openpty()

    with os.fdopen(writer, "w") as stream:
        ConsoleSink(stream).write(_record(RunFailed(reason="x", message="[bold]宽" * 200)))
        shown = os.read(reader, 65536).decode(errors="replace")
    os.close(reader)

    assert ("\x1b[" in shown) == coloured
    assert "[bold]" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(("payload", "is_cut"), [("run_started", True), ("run_failed", False)])
def test_narrow_terminal_shows_the_subject_and_does_not_truncate_errors(
    payload: str, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    started = RunStarted(
        task="list the open points " * 9 + "END", mode="live", provider="p", model="m", profile="strict"
    )
    event = started if payload == "run_started" else RunFailed(reason="x", message="list the open points " * 9 + "END")
    reader, writer = pty.openpty()

    with os.fdopen(writer, "w") as stream:
        ConsoleSink(stream).write(_record(event))
        shown = os.read(reader, 65536).decode(errors="replace")
    os.close(reader)

    assert "list the open points" in shown
    assert ("END" not in shown) == is_cut


def _record(payload: Payload) -> EventRecord:
    return EventRecord(
        run_id="r",
        trace_id="abcdef0123456789",
        span_id="s",
        timestamp=SystemClock().now(),
        seq=1,
        event_type=payload.event_type,
        payload=payload,
    )


def _fields(kind: type[Struct]) -> dict[str, object]:
    return {field.name: _example(field) for field in fields(kind) if field.required}


def _example(field: FieldInfo) -> object:
    annotation: object = get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
    if annotation is LlmRequestMeta:
        return _fields(LlmRequestMeta)
    simple: dict[object, object] = {str: "text", int: 1, float: 1.5, bool: True}
    if annotation in simple:
        return simple[annotation]
    choices = get_args(getattr(annotation, "__value__", annotation))
    if choices and isinstance(choices[0], str | int):
        return choices[0]
    return {} if str(annotation).startswith("dict") else () if str(annotation).startswith("tuple") else None
