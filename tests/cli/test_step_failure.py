"""Failures of skills: retries, messages to the model, end of the run, log entries."""

import json
from typing import Any, cast

import pytest
from model_server import ModelServer, calls, says
from run_workspace import GREET, QUICK, Workspace, use_model

COUNTS = """import sys
open("calls", "a").write("x")
print("half of the work is done")
sys.stderr.write("usage: counts [-h] --from FROM\\n" if "--from" not in sys.argv else "broken\\n")
sys.exit(2 if "--from" not in sys.argv else 3 if sys.argv[2] == "never" else 0)
"""
"""Counts its calls in its own folder; the first argument must be `--from`."""
NAPS = 'open("calls", "a").write("x")\nimport time\ntime.sleep(60)\n'


def run_script(*args: str, script: str = "count", json: bool = True) -> dict[str, Any]:
    return {"skill_name": "counter", "script_name": script, "args": list(args), "json": json}


def read_results(model: ModelServer) -> list[dict[str, Any]]:
    """Return the results of calls in the last request as JSON."""
    messages = cast("list[dict[str, Any]]", model.received[-1]["messages"])
    texts = [str(message["content"]) for message in messages if message["role"] == "tool"]
    return [json.loads(text[text.index("{") : text.rindex("}") + 1]) for text in texts]


@pytest.fixture
def counter(workspace: Workspace) -> Workspace:
    workspace.add_skill("counter", "Count things from a number.", count=COUNTS, nap=NAPS)
    return workspace


def count_calls(workspace: Workspace) -> int:
    return len((workspace.folder / "skills" / "counter" / "scripts" / "calls").read_text())


def test_the_model_reads_an_argument_error_and_corrects_it(counter: Workspace, model: ModelServer) -> None:
    model.follow(
        calls("script_run", **run_script("wrong", json=False)),
        calls("script_run", **run_script("--from", "1", json=False)),
        says("Counted."),
    )

    assert counter.agent("run", "Count") == 0

    first, second = read_results(model)
    assert (first["success"], first["error"]) == (False, "execution_failed")
    assert first["message"].startswith("Script failed with exit code 2\nstderr: usage: counts")
    assert first["stdout"] == "half of the work is done"
    assert second["success"] is True
    assert count_calls(counter) == 2


def test_a_repeated_failure_of_the_same_call_ends_the_run(counter: Workspace, model: ModelServer) -> None:
    model.follow(calls("script_run", **run_script("--from", "never")), says("Never asked."))
    model.script = [model.script[0], model.script[0], model.script[1]]

    assert counter.agent("run", "Count") == 1

    assert len(model.received) == 2
    assert count_calls(counter) == 2
    assert counter.events()[-1]["payload"]["reason"] == "step_failed"


def test_failed_script_of_a_skill_without_effects_is_retried_once(counter: Workspace, model: ModelServer) -> None:
    file = counter.folder / "skills" / "counter" / "SKILL.md"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("\n---\n", "\nside_effects: {kinds: []}\n---\n", 1), encoding="utf-8")
    model.follow(calls("script_run", **run_script("--from", "never", json=False)), says("It is broken."))

    assert counter.agent("run", "Count") == 0

    assert count_calls(counter) == 2
    [retry] = [event["payload"] for event in counter.events() if event["event_type"] == "step_retry_scheduled"]
    assert retry["reason"] == "execution_failed"


def test_a_script_is_not_repeated_after_a_timeout(
    counter: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_TIMEOUT", "1")
    model.follow(calls("script_run", **run_script(script="nap")), says("It takes too long."))

    assert counter.agent("run", "Nap") == 0

    assert [result["error"] for result in read_results(model)] == ["timeout"]
    assert count_calls(counter) == 1


def test_help_of_a_script_has_the_time_limit_of_the_script(
    counter: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_TIMEOUT", "0.5")
    model.follow(calls("script_help", skill_name="counter", script_name="nap"), says("It takes too long."))

    assert counter.agent("run", "Nap") == 0

    (result,) = read_results(model)
    assert (result["error"], result["message"].startswith("Script timed out after 0.5s")) == ("timeout", True)


def test_the_model_gets_other_matching_skills_and_keeps_control(counter: Workspace, model: ModelServer) -> None:
    counter.add_skill("counting-house", "Count things from a number, slowly.", greet=GREET)
    model.follow(calls("script_run", **run_script("wrong")), says("I give up."))

    assert counter.agent("run", "Count things from a number") == 0

    (result,) = read_results(model)
    assert "counting-house" in result["other_skills"]
    assert "greeter" not in result["other_skills"]
    assert "handoff" not in counter.event_types()


def test_the_log_contains_the_script_its_skill_and_its_output(counter: Workspace, model: ModelServer) -> None:
    model.follow(
        calls("use_skill", skill="greeter"), calls("script_run", **run_script("--from", "never")), says("It broke.")
    )

    assert counter.agent("run", "Count") == 0

    told = [event["payload"] for event in counter.events() if event["event_type"] == "skill_step_executed"][-1]
    assert (told["skill_name"], told["script"], told["exit_code"]) == ("counter", "count.py", 3)
    assert told["stdout_summary"].strip() == "half of the work is done"
    assert told["stderr_summary"].strip() == "broken"


@pytest.mark.parametrize(
    ("policy", "requests"), [("retry_once_then_abort", 1), ("abort", 1), ("fallback_then_abort", 2)]
)
def test_a_policy_without_fallback_ends_the_run_at_the_first_failure(
    *, policy: str, requests: int, counter: Workspace, model: ModelServer
) -> None:
    counter.configure(model=use_model(model), runtime={**QUICK, "on_step_failure": policy})
    model.follow(calls("script_run", **run_script("wrong")), says("It broke."))

    counter.agent("run", "Count")

    assert len(model.received) == requests
    assert count_calls(counter) == 1


def test_a_skill_that_failed_and_handed_over_is_recorded_as_failed(counter: Workspace, model: ModelServer) -> None:
    model.follow(
        calls("use_skill", skill="counter"),
        calls("script_run", **run_script("wrong", json=False)),
        calls("use_skill", skill="greeter", reason="The other one failed"),
        says("Greeted."),
    )

    assert counter.agent("run", "Count", "--quiet") == 0

    ended = [event["payload"] for event in counter.events() if event["event_type"] == "skill_invocation_finished"]
    assert [(each["skill_name"], each["status"]) for each in ended] == [("counter", "failed"), ("greeter", "succeeded")]
