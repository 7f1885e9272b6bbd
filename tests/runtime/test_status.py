"""One status for every interface: pauses, questions, limits and exit codes follow from the state of a run."""

from datetime import UTC, datetime

import pytest
from msgspec import convert
from pydantic import JsonValue

from metier.engine.entries.question import InputAsked
from metier.engine.entries.run import RunFailed, RunPaused
from metier.engine.state.run_state import RunState
from metier.runtime.notify.a2a import get_task_state
from metier.runtime.status import RunStatus, compute_status
from metier.store.base import RunRow
from metier.views.user_question import parse_question

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ROW = RunRow(run_id="r", context_id="r", status="paused", task="Do it", created_at=NOW, updated_at=NOW)


def paused(pause: str, **more: object) -> RunStatus:
    entry = convert({"pause": pause, "reason": "because", **more}, RunPaused)
    return compute_status(ROW, RunState(run_id="r", status="paused", phase="CALL_LLM", pause=entry))


@pytest.mark.parametrize(
    ("pause", "kind", "task_state", "code"),
    [
        ("approval", "approval", "AUTH_REQUIRED", 3),
        ("input", "input", "INPUT_REQUIRED", 4),
        ("in_doubt", "in_doubt", "AUTH_REQUIRED", 4),
        ("step_failed", "step_failed", "AUTH_REQUIRED", 1),
        ("changed_code", "changed_code", "AUTH_REQUIRED", 4),
        ("explicit", "stopped", "AUTH_REQUIRED", 1),
        ("signal", "stopped", "WORKING", 1),
        ("delegation", "stopped", "WORKING", 1),
    ],
)
def test_every_interface_reads_a_pause_from_the_same_status(pause: str, kind: str, task_state: str, code: int) -> None:
    status = paused(pause)

    assert (status.wait_kind, get_task_state(status), status.exit_code()) == (kind, task_state, code)
    assert status.can_continue
    assert (status.reason, status.message) == (pause, "because")


def test_run_paused_at_a_limit_waits_for_a_user_to_raise_it() -> None:
    status = paused("limit", limit="max_turns")

    assert (status.wait_kind, status.limit, status.exit_code()) == ("limit", "max_turns", 7)
    assert status.waits_for_user
    assert get_task_state(status) == "AUTH_REQUIRED"


def test_failed_run_continues_only_after_a_limit_or_a_provider_error() -> None:
    def failed(reason: str) -> RunStatus:
        failure = RunFailed(reason=reason, message="No luck")
        return compute_status(ROW, RunState(run_id="r", status="failed", phase="ERROR", failure=failure))

    assert [failed(reason).can_continue for reason in ("max_turns_exceeded", "server_error", "denied")] == [
        True,
        True,
        False,
    ]
    assert (failed("max_turns_exceeded").wait_kind, failed("denied").wait_kind) == ("limit", "")
    assert failed("denied").failure_text == "No luck (denied)"


def test_question_of_a_run_includes_its_fields() -> None:
    asked = InputAsked(request_id="q", step_id="s", question="Which?", fields=["colour", {"name": "size"}])
    pause = RunPaused(pause="input", reason="Which?")
    state = RunState(run_id="r", status="input_required", phase="CALL_LLM", pause=pause, question=asked)

    status = compute_status(ROW, state)

    assert status.is_asking
    assert status.question is not None
    assert (status.question.text, status.question.names) == ("Which?", ("colour", "size"))


@pytest.mark.parametrize(
    ("fields", "names", "required"),
    [
        (None, ("answer",), ("answer",)),
        ([], ("answer",), ("answer",)),
        ({}, ("answer",), ("answer",)),
        (["a", "b"], ("a", "b"), ("a", "b")),
        ([{"name": "a", "required": False}, {"name": "b", "required": True}], ("a", "b"), ("b",)),
        ({"a": "a number", "b": "a text"}, ("a", "b"), ("a",)),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}, ("a", "b"), ("b",)),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, ("a", "b"), ("a",)),
    ],
)
def test_fields_are_recognized_in_every_form_that_models_write(
    fields: JsonValue, names: tuple[str, ...], required: tuple[str, ...]
) -> None:
    question = parse_question("q", "Which?", fields)

    assert (question.names, question.required_names) == (names, required)
