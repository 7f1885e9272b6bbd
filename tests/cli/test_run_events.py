"""Known scenarios produce known event sequences.

To update them after an intended change, run this file with `UPDATE_SNAPSHOTS=1`, then read the diff.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, Reply, calls, fails, says
from run_workspace import BREAK, QUICK, Workspace, use_model

SNAPSHOTS = Path(__file__).parent.parent / "fixtures" / "event_snapshots"

SHOWN = {
    "run_started": ("mode", "task"),
    "skill_catalog_loaded": ("skills",),
    "skill_prefilter_completed": ("considered", "strategy"),
    "skill_disclosure_loaded": ("skill_name", "stage"),
    "prompt_composed": ("turn",),
    "llm_request_sent": ("turn", "meta.attempt"),
    "llm_retry_scheduled": ("turn", "meta.attempt", "reason"),
    "llm_request_failed": ("turn", "meta.attempt", "reason"),
    "llm_response_received": ("turn", "stop_reason", "tool_calls"),
    "llm_decision_decoded": ("turn", "selected_skill", "path"),
    "skill_invocation_started": ("skill_name",),
    "step_started": ("step_id", "tool", "effect"),
    "skill_step_executed": ("step_id", "tool", "status", "exit_code", "error_type", "retry_count"),
    "step_retry_scheduled": ("step_id", "reason"),
    "skill_invocation_finished": ("skill_name", "status"),
    "handoff": ("from_skill", "to_skill"),
    "run_finished": ("status", "mode", "turns"),
    "run_failed": ("status", "reason", "turns"),
}
"""The stable part of each event, without sizes, times and texts."""


def check(name: str, workspace: Workspace) -> None:
    lines = [_line(event) for event in workspace.events()]
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8").splitlines()


def _line(event: dict[str, Any]) -> str:
    fields = [f"{name}={_find(event['payload'], name)}" for name in SHOWN.get(event["event_type"], ())]
    return " ".join([event["event_type"], *fields])


def _find(payload: dict[str, Any], name: str) -> object:
    value: Any = payload
    for part in name.split("."):
        value = value[part]
    return value


def run_script(skill: str, script: str) -> Reply:
    return calls("script_run", skill_name=skill, script_name=script)


def test_events_of_a_successful_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(
        calls("use_skill", skill="greeter", reason="It greets"), run_script("greeter", "greet"), says("Hello!")
    )

    assert workspace.agent("run", "Greet somebody kindly") == 0

    check("success", workspace)


def test_events_of_a_handoff_between_two_skills(workspace: Workspace, model: ModelServer) -> None:
    workspace.add_skill("farewell", "Say goodbye kindly.", bye='print("{}")')
    model.follow(
        calls("use_skill", skill="greeter", reason="First greet"), run_script("greeter", "greet"),
        calls("use_skill", skill="farewell", reason="Then part"), run_script("farewell", "bye"), says("Both done."),
    )  # fmt: skip

    assert workspace.agent("run", "Greet somebody kindly, then say goodbye") == 0

    check("handoff", workspace)


def test_the_model_reads_a_script_failure_and_uses_another_skill(workspace: Workspace, model: ModelServer) -> None:
    workspace.add_skill("breaker", "Greet somebody kindly, and break.", broken=BREAK)
    model.follow(
        calls("use_skill", skill="breaker", reason="Try it"), run_script("breaker", "broken"),
        run_script("greeter", "greet"), says("Hello after all."),
    )  # fmt: skip

    assert workspace.agent("run", "Greet somebody kindly") == 0

    check("script_failure_fallback", workspace)


def test_a_script_failure_without_another_skill_ends_the_run(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "on_step_failure": "retry_once_then_abort"})
    workspace.add_skill("breaker", "Break.", broken=BREAK)
    model.follow(calls("use_skill", skill="breaker", reason="Try it"), run_script("breaker", "broken"))

    assert workspace.agent("run", "Break something") == 1

    check("script_failure_abort", workspace)


def test_a_request_is_retried_in_the_same_turn_after_the_provider_recovers(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(fails(429), fails(500), says("At last."))

    assert workspace.agent("run", "Greet") == 0

    check("provider_retries", workspace)


def test_a_provider_that_does_not_recover_ends_the_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(fails(503))

    assert workspace.agent("run", "Greet") == 8

    check("provider_exhausted", workspace)


@pytest.mark.parametrize(("strategy", "code"), [("fallback_all_skills", 0), ("fail_fast", 1)])
def test_events_of_a_request_without_a_matching_skill(
    *, strategy: str, code: int, workspace: Workspace, model: ModelServer
) -> None:
    skills = {"prefilter_top_k": 1, "prefilter_zero_candidate_strategy": strategy}
    workspace.configure(model=use_model(model), runtime=QUICK, skills=skills)
    workspace.add_skill("farewell", "Say goodbye kindly.")
    model.follow(says("I did it without."))

    assert workspace.agent("run", "Zxqv wvut") == code

    check(f"zero_candidates_{strategy}", workspace)


def test_score_and_strategy_apply_to_a_single_skill(workspace: Workspace, model: ModelServer) -> None:
    skills = {"prefilter_zero_candidate_strategy": "fail_fast"}
    workspace.configure(model=use_model(model), runtime=QUICK, skills=skills)
    workspace.add_skill("farewell", "Say goodbye kindly.")
    model.follow(says("Hello."))

    assert workspace.agent("run", "Zxqv wvut") == 1
    (first,) = workspace.run_ids()
    assert workspace.events()[-1]["payload"]["reason"] == "no_skill_candidates"
    scored = next(event for event in workspace.events() if event["event_type"] == "skill_prefilter_completed")
    assert (scored["payload"]["considered"], scored["payload"]["strategy"]) == (2, "fail_fast")
    assert {each["skill_name"]: each["score"] for each in scored["payload"]["candidates"]} == {
        "greeter": 0.0,
        "farewell": 0.0,
    }
    assert workspace.agent("run", "Greet somebody with the script") == 0

    (second,) = {*workspace.run_ids()} - {first}
    ranked = next(event for event in workspace.events(second) if event["event_type"] == "skill_prefilter_completed")
    assert [candidate["skill_name"] for candidate in ranked["payload"]["candidates"]] == ["greeter"]
    # Both are described all the same: it is a matter of a few words.
    assert "Say goodbye kindly." in str(model.received[0]["messages"])


def test_events_of_a_run_with_a_missing_key(workspace: Workspace) -> None:
    told = ("--detach", "--provider", "gemini", "--model", "gemini-2.5-flash")
    assert workspace.agent("run", "Greet", *told) == 0
    assert workspace.agent("resume", "latest") == 8

    check("missing_key", workspace)


def test_an_invalid_decision_is_repaired_once(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model={**use_model(model), "structured_output_mode": "json"}, runtime=QUICK)
    decision = '{"planned_actions": [{"type": "finish", "params": {"result": "Repaired."}}]}'
    model.follow(says("no JSON at all"), says(decision))

    assert workspace.agent("run", "Greet") == 0

    check("decode_repair", workspace)


def test_a_decision_that_cannot_be_repaired_ends_the_run(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model={**use_model(model), "structured_output_mode": "json"}, runtime=QUICK)
    model.follow(says("no JSON at all"))

    assert workspace.agent("run", "Greet") == 1

    check("decode_failed", workspace)


def test_events_of_a_run_at_its_turn_limit(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("skill_search", query="one"), calls("skill_search", query="two"), says("too late"))

    assert workspace.agent("run", "Greet", "--max-turns", "2") == 7

    check("max_turns", workspace)


@pytest.mark.parametrize("agent", ["", "helper"])
def test_catalog_event_has_the_loading_time(agent: str, workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/agents/helper/AGENT.md", "---\nname: Helper\n---\n\nHelp.\n")
    model.follow(says("Done."))
    assert workspace.agent("run", "-q", "Greet", *(("--agent", agent) if agent else ())) == 0

    loaded = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_catalog_loaded"]
    assert [event["duration_ms"] > 0 for event in loaded] == [True]
    assert workspace.agent("replay", workspace.run_ids()[-1], "--execute") == 0


def test_failed_command_has_a_summary_of_each_stream(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Bash", command="echo printed; echo broken >&2; exit 4"), says("Done"))

    assert workspace.agent("run", "-q", "Try it") == 0

    [step] = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_step_executed"]
    assert (step["exit_code"], step["stdout_summary"], step["stderr_summary"]) == (4, "printed\n", "broken\n")
