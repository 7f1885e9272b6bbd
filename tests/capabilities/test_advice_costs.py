"""The cost of advice to a skill is part of the run's cost and its limit."""

from pathlib import Path

import anyio
import pytest
from capability_skills import write_skill

from metier.engine.options import RuntimeOptions
from metier.engine.replay.recording import Divergence
from metier.engine.state.run_state import RunState
from metier.providers.options import ModelOptions
from metier.runtime.answers import Answer
from metier.runtime.history.replays import replay_run
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.scripted import Line, ScriptedProvider, ToolCall, calls, says

HYBRID = "execution_mode: hybrid"
NAMES = "def execute(context):\n    return {'name': context.advise('Give it a name')['name']}\n"
NAMES_THEN_ASKS = """
def execute(context):
    if "colour" in context.inputs:
        return {"outputs": {"name": context.inputs["colour"] + " boat"}}
    context.advise("Give it a name")
    return {"state": "input_required", "input_request": {"missing_fields": [{"name": "colour"}]}}
"""
CALLS_NAMER = """
def execute(context):
    if context.delegated is None:
        return {"state": "delegating", "delegation": {"skill": "namer", "inputs": {}}}
    return {"outputs": {"summary": repr(context.delegated)}}
"""
WAITS = f"{HYBRID}\ninteraction_outcomes: {{allowed_intermediate_states: [input_required]}}"
PRICES = 'scripted: {"*": {prices: {input: 10000, output: 100000, as_of: 2026-01-01}}}\n'
USE = calls(ToolCall("use_skill", {"skill": "namer", "inputs": {}}))
ADVICE = says('{"name": "boat"}')


def place_of(workspace: Path, *script: Line, most_usd: float | None = None) -> Host:
    (workspace / "prices.yaml").write_text(PRICES, encoding="utf-8")
    settings = Settings(
        runtime=RuntimeOptions(max_cost_usd=most_usd), model=ModelOptions(name="m", facts_file="prices.yaml")
    )
    return Host(
        trust=MADE_HERE,
        settings=settings,
        workspace=workspace,
        home=workspace,
        environ={},
        provider=ScriptedProvider(*script),
    )


def drive(host: Host, *, then: Answer | None = None) -> tuple[RunState, Divergence | None]:
    async def both() -> tuple[RunState, Divergence | None]:
        async with open_runtime(host) as runtime:
            state = await runtime.start(RunRequest(task="name it"))
            if then is not None:
                state = await runtime.resume(state.run_id, then)
            report = await replay_run(runtime, state.run_id)
            return state, report.outcome.divergence

    return anyio.run(both)


def test_tokens_and_cost_of_advice_count_toward_the_run(workspace: Path) -> None:
    write_skill(workspace / "skills", "namer", contract=HYBRID, impl=NAMES)

    state, divergence = drive(place_of(workspace, USE, ADVICE, says("done")))

    assert (state.status, state.input_tokens, state.output_tokens) == ("completed", 300, 30)
    assert state.cost_usd == pytest.approx(3 * 2.0)
    assert divergence is None


def test_advice_before_a_question_is_counted_once(workspace: Path) -> None:
    write_skill(workspace / "skills", "namer", contract=WAITS, impl=NAMES_THEN_ASKS)

    state, divergence = drive(place_of(workspace, USE, ADVICE, says("done")), then=Answer(values={"colour": "red"}))

    assert (state.status, state.input_tokens, state.output_tokens) == ("completed", 300, 30)
    assert "red boat" in state.results[0]
    assert divergence is None


def test_run_sends_no_request_after_advice_exhausted_its_budget(workspace: Path) -> None:
    write_skill(workspace / "skills", "namer", contract=HYBRID, impl=NAMES)

    state, _ = drive(place_of(workspace, USE, ADVICE, says("never"), most_usd=3.0))

    assert state.failure is not None
    assert (state.status, state.failure.reason) == ("escalated", "budget_exceeded")


def test_nested_skill_is_not_called_again_after_its_advice_exhausted_its_share(workspace: Path) -> None:
    hands_on = "interaction_outcomes: {allowed_intermediate_states: [delegating]}\ndepends_on: [namer]"
    write_skill(workspace / "skills", "caller", contract=hands_on, impl=CALLS_NAMER)
    write_skill(workspace / "skills", "namer", contract=WAITS, impl=NAMES_THEN_ASKS)
    use = calls(ToolCall("use_skill", {"skill": "caller", "inputs": {}}))
    host = place_of(workspace, use, ADVICE, says("done"), most_usd=4.1)

    state, divergence = drive(host, then=Answer(values={"colour": "red"}))

    assert [child.status for child in state.children] == ["escalated"]
    assert "red boat" not in state.results[0]
    assert "over the limit" in state.results[0]
    assert (state.status, state.cost_usd) == ("completed", pytest.approx(3 * 2.0))
    assert divergence is None


def test_advice_of_two_concurrent_skills_is_counted_for_both(workspace: Path) -> None:
    for name in ("namer", "other"):
        write_skill(workspace / "skills", name, contract=WAITS, impl=NAMES_THEN_ASKS)
    both = calls(ToolCall("namer.invoke", {}), ToolCall("other.invoke", {}))

    state, divergence = drive(place_of(workspace, both, ADVICE, ADVICE))

    assert (state.status, state.input_tokens, state.output_tokens) == ("input_required", 300, 30)
    assert state.cost_usd == pytest.approx(3 * 2.0)
    assert divergence is None
