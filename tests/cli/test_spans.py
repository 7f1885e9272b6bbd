"""Spans in the event log: a start and its end share a span, and each span has a parent."""

from typing import Any

from model_server import ModelServer, calls, says
from run_workspace import Workspace


def spans_of(events: list[dict[str, Any]], *types: str) -> set[str]:
    return {event["span_id"] for event in events if event["event_type"] in types}


def parents_of(events: list[dict[str, Any]], *types: str) -> set[str]:
    return {event["parent_span_id"] for event in events if event["event_type"] in types}


def test_start_and_end_share_a_span_and_name_its_parent(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Glob", pattern="*.md"), says("Done."))

    assert workspace.agent("run", "Look") == 0

    events = workspace.events()
    (run,) = spans_of(events, "run_started", "run_finished")
    (step,) = spans_of(events, "step_started", "skill_step_executed")
    sent = spans_of(events, "llm_request_sent")
    turns = spans_of(events, "llm_decision_decoded")
    assert sent == spans_of(events, "llm_response_received")
    assert parents_of(events, "run_started") == {""}
    assert parents_of(events, "llm_decision_decoded") == {run}
    assert parents_of(events, "llm_request_sent") == turns
    assert parents_of(events, "step_started") < turns
    assert len({run, step, *sent, *turns}) == 6


def test_a_step_that_ends_after_a_resume_keeps_its_span(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Done."))
    assert workspace.agent("run", "Ask") == 4

    assert workspace.agent("resume", "latest", "--input", "answer=blue") == 0

    events = workspace.events()
    assert len(spans_of(events, "input_requested", "input_received")) == 1
    assert len(spans_of(events, "run_started", "run_resumed", "run_finished")) == 1
