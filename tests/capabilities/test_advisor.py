"""A model as bounded advisor: its advice is checked before use."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from capability_skills import write_skill
from pydantic import JsonValue

from metier import create_agent_adapter, create_executor
from metier.capabilities.advisor import AdvisorOutputValidator, ProviderAdvisor
from metier.capabilities.contract import Schema, SideEffects, SkillContract
from metier.capabilities.protocol import AgentResponse
from metier.errors import ProviderError
from metier.testing.scripted import Says, ScriptedProvider

pytestmark = pytest.mark.slow

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASKS = f"""
import json
SCHEMA = json.loads({json.dumps(json.dumps(SCHEMA))})
def execute(context):
    advice = context.advise("Give it a name", SCHEMA)
    return {{"name": advice["name"] if advice else "unnamed"}}
"""
HYBRID = "execution_mode: hybrid\nmax_fix_iterations: 2"
MULTI = "\ninteraction_outcomes: {allowed_intermediate_states: [input_required]}"


@dataclass
class SayingAdvisor:
    """An advisor that gives scripted answers and records its questions."""

    words: Sequence[str]
    asked: list[str] = field(default_factory=list[str])

    async def ask(self, prompt: str, schema: Schema | None) -> str:
        del schema
        self.asked.append(prompt)
        if len(self.asked) > len(self.words):
            raise ProviderError("Nobody answers any more")
        return self.words[len(self.asked) - 1]


def invoke(workspace: Path, advisor: SayingAdvisor, *, contract: str = HYBRID, impl: str = ASKS) -> AgentResponse:
    write_skill(workspace / "skills", "sample", contract=contract, impl=impl)
    executor = create_executor(workspace, advisor=advisor)
    return create_agent_adapter(executor).invoke("sample", {}, "ctx")


def test_advice_that_matches_the_schema_is_used(workspace: Path) -> None:
    advisor = SayingAdvisor(['```json\n{"name": "boat"}\n```'])

    response = invoke(workspace, advisor)

    assert response.outputs == {"name": "boat"}
    assert (response.metadata.advice_calls, response.metadata.fix_iterations) == (1, 0)


def test_invalid_advice_is_sent_back_with_its_errors(workspace: Path) -> None:
    advisor = SayingAdvisor(["Sure!", '{"name": 5}', '{"name": "boat"}'])

    response = invoke(workspace, advisor)

    assert response.outputs == {"name": "boat"}
    assert response.metadata.fix_iterations == 2
    assert "5 is not of type 'string' (at $.name)" in advisor.asked[2]


def test_user_gets_a_report_after_the_limit_of_the_contract(workspace: Path) -> None:
    advisor = SayingAdvisor(['{"name": 5}'] * 9)

    response = invoke(workspace, advisor)

    assert (response.state, response.metadata.agent_state_detail) == ("escalated", "advice_refused")
    assert len(advisor.asked) == 3
    assert [line.partition(":")[0] for line in response.metadata.report] == [
        "Attempt 1",
        "Attempt 2",
        "Attempt 3",
        "No usable advice in 3 attempts",
    ]


def test_skill_completes_without_advice_if_no_advisor_answers(workspace: Path) -> None:
    response = invoke(workspace, SayingAdvisor([]))

    assert response.outputs == {"name": "unnamed"}
    assert response.metadata.report == ("No advice: Nobody answers any more",)


def test_deterministic_skill_never_reaches_the_model(workspace: Path) -> None:
    advisor = SayingAdvisor(['{"name": "boat"}'])

    response = invoke(workspace, advisor, contract="execution_mode: deterministic")

    assert (response.state, advisor.asked) == ("blocked", [])


def test_advice_requests_per_turn_are_limited(workspace: Path) -> None:
    advisor = SayingAdvisor(['{"name": "boat"}'] * 50)
    impl = "def execute(c):\n    for number in range(50):\n        c.advise(f'question {number}')\n    return {}\n"

    response = invoke(workspace, advisor, impl=impl)

    assert (response.state, len(advisor.asked)) == ("escalated", 8)


def test_answer_that_violates_the_contract_is_retried_and_then_escalated(workspace: Path) -> None:
    impl = "def execute(c):\n    return {'tries': len(c.problems)} if len(c.problems) < {limit} else {'done': True}\n"
    contract = f"{HYBRID}\noutput_schema: {{required: [done]}}"

    mended = invoke(workspace, SayingAdvisor([]), contract=contract, impl=impl.replace("{limit}", "2"))
    hopeless = invoke(workspace, SayingAdvisor([]), contract=contract, impl=impl.replace("{limit}", "9"))

    assert (mended.outputs, mended.metadata.fix_iterations) == ({"done": True}, 2)
    assert (hopeless.state, hopeless.metadata.agent_state_detail) == ("escalated", "fix_limit")
    assert len(hopeless.metadata.report) == 3
    assert "'done' is a required property" in hopeless.metadata.report[0]


def test_effects_that_cannot_be_repeated_are_not_retried(workspace: Path) -> None:
    impl = """
def execute(c):
    with open(c.workspace / "effects", "a") as stream:
        stream.write("x")
    return {}
"""
    contract = f"{HYBRID}\nautonomy_level: implement\nside_effects: [writes_files]\noutput_schema: {{required: [done]}}"

    response = invoke(workspace, SayingAdvisor([]), contract=contract, impl=impl)

    assert response.state == "escalated"
    assert (workspace / "effects").read_text(encoding="utf-8") == "x"


def test_advice_is_paid_for_once_when_a_turn_is_repeated(workspace: Path) -> None:
    impl = ASKS.replace("    return", "    (context.workspace / 'x').read_text()\n    return")
    write_skill(workspace / "skills", "sample", contract=HYBRID + MULTI, impl=impl)
    advisor = SayingAdvisor(['{"name": "boat"}', '{"name": "never"}'])
    adapter = create_agent_adapter(create_executor(workspace, advisor=advisor))

    failed = adapter.invoke("sample", {}, "ctx")
    (workspace / "x").touch()
    again = adapter.invoke("sample", {}, "ctx")

    # The first turn ended, if badly: what it was told is not kept for a new conversation.
    assert failed.state == "failed"
    assert again.outputs == {"name": "never"}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"path": "docs/a.md", "content": "x"}, ""),
        ({"path": "src/a.md", "content": "x"}, "outside the contract's paths"),
        ({"files": [{"file": "../a.md"}]}, "outside the contract's paths"),
        ({"target": "/etc/passwd"}, "outside the contract's paths"),
        ({"path": "C:\\a"}, "outside the contract's paths"),
        ({"code": "import asyncio"}, "Code line 1: Module 'asyncio' needs an event loop"),
        ({"path": "docs/a.py", "content": "import requests\nrequests.get('u')"}, "Code line 2: requests.get"),
        ({"code": "def f(:"}, "Not readable as Python"),
        ({"value": float("nan")}, "not valid JSON"),
        ({"name": 5}, "does not match the schema"),
    ],
)
def test_advice_of_a_model_is_checked_for_schema_scope_and_safety(value: dict[str, JsonValue], wrong: str) -> None:
    effects = SideEffects(kinds=("writes_files",), paths=("docs/*",))
    contract = SkillContract(skill="s", autonomy_level="implement", side_effects=effects)
    schema: Schema = {"properties": {"name": {"type": "string"}}}

    problems = AdvisorOutputValidator(contract=contract, schema=schema).list_problems(value)

    assert [wrong in problem for problem in problems] == ([True] if wrong else [])


def test_proposal_to_write_needs_a_contract_with_write_effects() -> None:
    validator = AdvisorOutputValidator(contract=SkillContract(skill="s"))

    assert validator.list_problems({"path": "a.md", "content": "x"}) == (
        "It writes to 'a.md', but the contract has no writes_files",
    )


def test_model_of_the_run_is_asked_for_json_and_offered_no_tools(workspace: Path) -> None:
    provider = ScriptedProvider(Says('{"name": "boat"}'))
    write_skill(workspace / "skills", "sample", contract=HYBRID, impl=ASKS)
    executor = create_executor(workspace, advisor=ProviderAdvisor(provider=provider, model="m"))

    response = create_agent_adapter(executor).invoke("sample", {}, "ctx")

    assert response.outputs == {"name": "boat"}
    (request,) = provider.requests
    assert (request.tools, request.tool_choice, request.response_schema) == ((), "none", SCHEMA)
