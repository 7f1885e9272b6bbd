"""A view is a fold of events: equal live and from the log, one item per step, a place for every event."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from records import record, records

from metier.events.model import LlmRequestFailed, LlmRequestMeta, LlmRequestSent, LlmResponseReceived, LlmRetryScheduled
from metier.events.payload import Payload
from metier.events.record import parse_record, payload_types, render_record
from metier.events.run import RunFailed, RunFinished, RunPaused, RunStarted
from metier.events.skill import Handoff, SkillInvocationStarted
from metier.events.step import ApprovalDecided, ApprovalRequested, CallRefused, SkillStepExecuted, StepStarted
from metier.events.task import ChildRunStarted
from metier.telemetry.console import WORDINGS
from metier.views import fold as folding
from metier.views.fold import add_text, fold, fold_all, with_answer
from metier.views.fold_notes import NOTES, UNSEEN
from metier.views.run_view import NoteView, RunView, StepView, TextView

META = LlmRequestMeta(provider="anthropic", model="m", latency_ms=900)
PAID = replace(META, input_tokens=1200, cached_tokens=900, output_tokens=40, cost_usd=0.02)


class _Newer(Payload, frozen=True, kw_only=True):
    """An event type unknown to this version."""

    event_type = "newer"
    message: str


def run_with_a_step() -> Iterator[Payload]:
    yield RunStarted(task="look", agent="writer", provider="anthropic", model="m", profile="guarded")
    yield LlmRequestSent(turn=1, meta=META)
    yield LlmResponseReceived(turn=1, meta=PAID, stop_reason="tool_calls", text_summary="I look.", tool_calls=("Bash",))
    yield StepStarted(step_id="1.1", action="run_command", tool="Bash", arguments={"command": "git log -5"})
    yield SkillStepExecuted(
        step_id="1.1", action="run_command", status="succeeded", tool="Bash", exit_code=0, duration_ms=210,
        excerpt="a\nb", output_lines=2,
    )  # fmt: skip
    yield LlmRequestSent(turn=2, meta=META)
    yield LlmResponseReceived(turn=2, meta=PAID, stop_reason="end", text_summary="Done.")
    yield RunFinished(result_summary="Done.", turns=2, input_tokens=2400, output_tokens=80, duration_ms=4000)


def test_a_retry_is_reported_in_words() -> None:
    retry = LlmRetryScheduled(turn=1, meta=META, reason="reply_broken", delay_seconds=0.5)

    view = fold_all(records([RunStarted(task="look"), retry]))

    assert [item.text for item in view.items if isinstance(item, NoteView)] == [
        "anthropic/m: reply broken; retrying in 0.5 s"
    ]


def test_run_with_one_step_is_text_step_answer_and_usage() -> None:
    view = fold_all(records(run_with_a_step()))

    step = view.steps[0]
    assert [type(item) for item in view.items] == [TextView, StepView]
    assert (step.tool, step.line, step.state, step.kind) == ("Bash", "git log -5", "succeeded", "command")
    assert (step.output, step.output_lines, step.duration_ms) == ("a\nb", 2, 210)
    assert (view.status, view.turn, view.answer, view.waiting) == ("completed", 2, "Done.", None)
    assert (view.usage.input_tokens, view.usage.cached_tokens, view.usage.output_tokens) == (2400, 1800, 80)
    assert view.usage.known_cost_usd == pytest.approx(0.04)
    assert [(call.turn, call.state, call.stop_reason) for call in view.calls] == [
        (1, "replied", "tool_calls"),
        (2, "replied", "end"),
    ]


def test_view_of_the_log_equals_the_live_view() -> None:
    lines = [render_record(each) for each in records(run_with_a_step())]

    again = fold_all(parse_record(line) for line in lines)

    assert again == fold_all(records(run_with_a_step()))


@pytest.mark.parametrize("payload_type", payload_types().values(), ids=payload_types().keys())
def test_every_event_type_is_folded_noted_or_rendered(payload_type: type[Payload]) -> None:
    places = [payload_type in folding.FOLDS, payload_type in NOTES, payload_type.event_type in WORDINGS]

    assert any(places)
    assert not (payload_type in UNSEEN and any(places[:2]))


def test_event_without_its_own_note_uses_the_text_of_event_lines() -> None:
    view = fold_all(records([Handoff(from_skill="a", to_skill="b", rationale="r"), _Newer(message="m")]))

    assert [note.level for note in view.items if isinstance(note, NoteView)] == ["detail"]


def test_call_with_an_approval_is_one_step() -> None:
    asked = ApprovalRequested(
        approval_id="a1", step_id="1.1", tool="Write", arguments_hash="h", arguments={"path": "x"}, rule="ask"
    )
    view = fold(fold(RunView(), record(RunStarted(task="t"))), record(asked, seq=2))
    assert [(step.state, step.approval_id) for step in view.steps] == [("waiting", "a1")]
    assert view.waiting is not None
    assert (view.waiting.kind, view.waiting.id) == ("approval", "a1")

    view = fold(view, record(ApprovalDecided(approval_id="a1", decision="approved"), seq=3))
    view = fold(view, record(StepStarted(step_id="1.1", action="call_tool", tool="Write"), seq=4))
    ended = SkillStepExecuted(step_id="1.1", action="call_tool", status="succeeded", tool="Write")
    view = fold(view, record(ended, seq=5))

    assert [(step.state, step.approval_id) for step in view.steps] == [("succeeded", "a1")]
    assert view.waiting is None


def test_question_in_an_older_log_without_step_id_belongs_to_the_next_step() -> None:
    payloads = [
        ApprovalRequested(approval_id="a1", tool="Write", arguments_hash="h", arguments={"path": "x"}),
        ApprovalDecided(approval_id="a1", decision="approved"),
        StepStarted(step_id="1.1", action="call_tool", tool="Write", arguments={"path": "x"}),
    ]

    view = fold_all(records(payloads))

    assert [(step.step_id, step.state) for step in view.steps] == [("1.1", "running")]


def test_denied_call_shows_who_denied_it_and_why() -> None:
    payloads = [
        ApprovalRequested(approval_id="a1", step_id="1.1", tool="Bash", arguments_hash="h"),
        ApprovalDecided(approval_id="a1", decision="denied", decided_by="ada", reason="not now"),
    ]

    view = fold_all(records(payloads))

    assert [(step.state, step.error) for step in view.steps] == [("denied", "denied by ada: not now")]


def test_call_denied_by_a_user_is_one_step_despite_the_refusal_event() -> None:
    asked = ApprovalRequested(approval_id="a1", step_id="1.1", tool="Bash", arguments_hash="h")
    view = fold_all(
        records([
            asked,
            ApprovalDecided(approval_id="a1", decision="denied", decided_by="ada", reason="not now"),
            CallRefused(step_id="1.1", action="call_tool", tool="Bash", arguments={"command": "ls"},
                           status="denied", reason="not now", verdict="ask"),
        ])
    )  # fmt: skip

    (step,) = view.steps
    assert (step.state, step.error) == ("denied", "denied by ada: not now")


def test_child_run_is_below_its_parent_and_its_usage_is_included() -> None:
    parent = [
        RunStarted(task="t"),
        ChildRunStarted(step_id="1.1", child_run_id="c1", agent="writer", task="draft"),
    ]
    child = [
        RunStarted(task="draft", parent_run_id="r1"),
        LlmRequestSent(turn=1, meta=META),
        LlmResponseReceived(turn=1, meta=PAID, stop_reason="end"),
        RunStarted(task="deep", parent_run_id="c1"),
    ]
    view = fold_all(records(parent))
    for number, payload in enumerate(child[:3], start=1):
        view = fold(view, record(payload, run_id="c1", seq=number))
    view = fold(view, record(child[3], run_id="c2"))

    assert [run.run_id for run in view.walk()] == ["r1", "c1", "c2"]
    assert view.children[0].children[0].task == "deep"
    assert view.usage.input_tokens == 0
    assert view.total_usage.input_tokens == 1200
    assert view.steps[0].child_run_id == "c1"


def test_call_without_a_price_makes_the_cost_unknown() -> None:
    unknown = replace(PAID, cost_usd=None)

    view = fold_all(records([LlmResponseReceived(turn=1, meta=unknown, stop_reason="end")]))

    assert view.usage.known_cost_usd is None


def test_retry_belongs_to_the_same_call_and_shows_the_delay() -> None:
    payloads = [
        LlmRequestSent(turn=1, meta=META),
        LlmRetryScheduled(turn=1, meta=META, reason="rate_limited", delay_seconds=4),
    ]
    view = fold_all(records(payloads))
    assert view.waiting is not None
    assert (view.waiting.kind, view.waiting.delay_seconds) == ("retry", 4)

    view = fold(view, record(LlmRequestSent(turn=1, meta=replace(META, attempt=2)), seq=3))

    assert [(call.state, call.attempt) for call in view.calls] == [("running", 2)]


def test_received_text_is_kept_in_full_if_the_log_only_has_its_start() -> None:
    view = fold_all(records([LlmRequestSent(turn=1, meta=META)]))
    view = add_text(view, "First line.\n\nSecond line.")

    reply = LlmResponseReceived(turn=1, meta=PAID, stop_reason="x", text_summary="First…", tool_calls=("Bash",))
    view = fold(view, record(reply, seq=2))

    assert [item.text for item in view.items if isinstance(item, TextView)] == ["First line.\n\nSecond line."]
    assert view.draft == ""


def test_interrupted_reply_keeps_the_received_text() -> None:
    failed = LlmRequestFailed(turn=1, meta=META, reason="interrupted", message="m", partial_text="Once upon")

    view = fold_all(records([LlmRequestSent(turn=1, meta=META), failed]))

    assert [item.text for item in view.items if isinstance(item, TextView)] == ["Once upon"]


def test_failed_and_paused_runs_show_the_reason() -> None:
    failed = fold_all(records([RunFailed(reason="prompt_too_large", message="Too large", turns=3)]))
    paused = fold_all(records([RunPaused(kind="signal", reason="Stopped", resume_with="agent resume r1")]))

    assert (failed.status, failed.reason, failed.message, failed.turn) == ("failed", "prompt_too_large", "Too large", 3)
    assert paused.waiting is not None
    assert (paused.status, paused.waiting.resume_with) == ("paused", "agent resume r1")


def test_activated_skill_is_a_heading() -> None:
    view = fold_all(records([SkillInvocationStarted(skill_name="notes", rationale="tidy\nup")]))

    assert view.items == (NoteView(turn=0, level="heading", text="notes tidy up"),)


def test_exact_result_replaces_its_summary() -> None:
    view = fold_all(records([RunFinished(result_summary="x" * 400)]))
    assert view.answer_is_cut

    view = with_answer(view, "x" * 1000)

    assert (len(view.answer), view.answer_is_cut) == (1000, False)


def test_resumed_run_without_a_seen_start_uses_its_final_totals() -> None:
    view = fold_all(records([RunFinished(turns=7, input_tokens=900, output_tokens=90, cost_usd=0.5)]))

    assert (view.turn, view.usage.input_tokens, view.usage.cost_usd) == (7, 900, 0.5)


def test_final_totals_without_a_cost_make_the_cost_unknown() -> None:
    # Events of child runs are not in the stream of a server.
    view = fold_all(records([RunFinished(turns=1, input_tokens=900, output_tokens=90, cost_usd=None)]))

    assert view.total_usage.known_cost_usd is None
    assert fold_all(records([RunFinished(cost_usd=None)])).total_usage.known_cost_usd == 0
