"""Turns with skills through the Python API: real processes, a real store, contracts enforced."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from capability_skills import write_skill

from metier import create_agent_adapter, create_executor
from metier.capabilities.adapter import AgentAdapter
from metier.capabilities.contract import Schema
from metier.capabilities.protocol import AgentResponse, ExecutionStatus, TaskState
from metier.errors import SkillNotFound, UsageError
from metier.store.failures import ResumeTokenRefused
from metier.store.state_store import StateOptions, open_state_store
from metier.telemetry.redaction import build_redactor

pytestmark = pytest.mark.slow

ASKS = """
interaction_outcomes:
  allowed_intermediate_states: [input_required]
  max_turns: 3
state_persistence: full_events
input_schema:
  type: object
  properties:
    count: {type: integer, minimum: 1, description: How many}
    name: {type: string}
  required: [count]
"""
ASKER = """
def execute(context):
    calls = context.recall("calls", 0) + 1
    context.remember("calls", calls)
    if "name" not in context.inputs:
        return {
            "state": "input_required",
            "input_request": {"message": "Who?", "missing_fields": [{"name": "name", "description": "Your name"}]},
        }
    return {"outputs": {"text": context.inputs["name"] * context.inputs["count"], "calls": calls, "turn": context.turn}}
"""


def open_adapter(workspace: Path, *, routes: bool = False) -> AgentAdapter:
    return create_agent_adapter(create_executor(workspace), routes=routes)


def detail(response: AgentResponse) -> tuple[str, str]:
    return response.state.value, response.metadata.agent_state_detail


def test_one_shot_skill_completes_at_once_and_stores_nothing(workspace: Path) -> None:
    write_skill(workspace / "skills", "echo")
    executor = create_executor(workspace)

    result = executor.execute("Echo", {"a": 1}, "correlation-1")
    response = open_adapter(workspace).invoke("echo", {"a": 1}, "ctx")

    assert (result.status, result.outputs) == (ExecutionStatus.SUCCESS, {"echo": {"a": 1}})
    assert (response.state, response.outputs) == (TaskState.COMPLETED, {"echo": {"a": 1}})
    with open_state_store("ctx", StateOptions(redactor=build_redactor(), runs=workspace / "runs")) as store:
        assert store.get_state().version == 0


def test_process_of_a_skill_imports_only_the_packages_of_the_skill(workspace: Path) -> None:
    impl = (
        "import sys\ndef execute(context):\n    packages = {name.partition('.')[0] for name in sys.modules}\n"
        "    return {'outputs': {'loaded': sorted(packages & {'pydantic', 'anyio', 'asyncio', 'yaml'})}}\n"
    )
    write_skill(workspace / "skills", "light", impl=impl)

    assert open_adapter(workspace).invoke("light", {}, "ctx").outputs == {"loaded": []}


def test_skill_with_a_script_entrypoint_can_be_called(workspace: Path) -> None:
    contract = "entrypoint:\n  script: greet\n  args: ['{name}']"
    folder = write_skill(workspace / "skills", "greeter", contract=contract, impl=None)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "greet.py").write_text(
        "import json, sys\nprint(json.dumps({'hello': sys.argv[1]}))\n", encoding="utf-8"
    )

    response = open_adapter(workspace).invoke("greeter", {"name": "Ada"}, "ctx")

    assert (response.state, response.outputs) == (TaskState.COMPLETED, {"hello": "Ada"})


def test_missing_input_is_asked_for_and_kept_until_complete(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)

    first = open_adapter(workspace).invoke("asker", {}, "ctx")
    second = open_adapter(workspace).invoke("asker", {"count": 2}, "ctx", resume=True)
    third = open_adapter(workspace).invoke("asker", {"name": "ab"}, "ctx", resume=True)

    assert detail(first) == ("input_required", "missing_input")
    assert first.input_request is not None
    assert [field.name for field in first.input_request.missing_fields] == ["count"]
    assert second.state == TaskState.INPUT_REQUIRED
    assert second.message == "Who?: name (Your name)"
    assert third.state == TaskState.COMPLETED
    assert third.outputs == {"text": "abab", "calls": 2, "turn": 2}


def test_invalid_input_is_asked_for_again_with_its_path_without_using_a_turn(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)
    adapter = open_adapter(workspace)

    responses = [adapter.invoke("asker", {"count": 0, "name": "x"}, "ctx")]
    responses += [adapter.invoke("asker", {"count": wrong}, "ctx", resume=True) for wrong in ("two", -1, 1.5, None)]
    done = adapter.invoke("asker", {"count": 3}, "ctx", resume=True)

    assert {detail(response) for response in responses} == {("input_required", "invalid_input")}
    asked = responses[1].input_request
    assert asked is not None
    assert asked.errors == ("'two' is not of type 'integer' (at $.count)",)
    assert done.outputs == {"text": "xxx", "calls": 1, "turn": 1}


def test_a_user_is_needed_after_the_last_turn_of_the_contract(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)
    adapter = open_adapter(workspace)

    adapter.invoke("asker", {"count": 1}, "ctx")
    states = [adapter.invoke("asker", {}, "ctx", resume=True).state.value for _ in range(3)]

    assert states == ["input_required", "input_required", "escalated"]
    assert detail(adapter.invoke("asker", {}, "ctx", resume=True)) == ("blocked", "not_waiting")


def test_state_not_allowed_by_the_contract_is_blocked(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", impl=ASKER)

    assert detail(open_adapter(workspace).invoke("asker", {"count": 1}, "ctx")) == ("blocked", "state_not_allowed")


def test_waiting_conversation_is_neither_restarted_nor_taken_by_another_skill(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)
    write_skill(workspace / "skills", "other", contract=ASKS, impl=ASKER)
    adapter = open_adapter(workspace)
    adapter.invoke("asker", {}, "ctx")

    assert detail(adapter.invoke("asker", {"count": 1}, "ctx")) == ("blocked", "already_waiting")
    assert detail(adapter.invoke("other", {"count": 1}, "ctx", resume=True)) == ("blocked", "other_skill")
    assert detail(adapter.invoke("asker", {}, "fresh", resume=True)) == ("blocked", "not_waiting")


def test_new_conversation_in_an_ended_context_starts_empty(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)
    adapter = open_adapter(workspace)
    adapter.invoke("asker", {"count": 1, "name": "a"}, "ctx")

    again = adapter.invoke("asker", {"count": 1, "name": "b"}, "ctx")

    assert again.outputs == {"text": "b", "calls": 1, "turn": 1}


def test_resume_token_works_once_and_a_foreign_one_is_rejected(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)
    adapter = open_adapter(workspace)
    token = adapter.invoke("asker", {}, "ctx").metadata.resume_token
    foreign = adapter.invoke("asker", {}, "other").metadata.resume_token

    with pytest.raises(ResumeTokenRefused):
        adapter.invoke("asker", {"count": 1}, "ctx", resume_token=foreign)
    response = adapter.invoke("asker", {"count": 1}, "ctx", resume_token=token)
    assert response.message == "Who?: name (Your name)"
    with pytest.raises(ResumeTokenRefused):
        adapter.invoke("asker", {"count": 1}, "ctx", resume_token=token)


def test_duplicate_message_is_answered_once(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)
    adapter = open_adapter(workspace)
    token = adapter.invoke("asker", {"count": 1}, "ctx", message_id="m1").metadata.resume_token

    first = adapter.invoke("asker", {"name": "a"}, "ctx", resume_token=token, message_id="m2")
    second = adapter.invoke("asker", {"name": "b"}, "ctx", resume_token=token, message_id="m2")

    assert (first.outputs, first.metadata.replayed) == ({"text": "a", "calls": 2, "turn": 2}, False)
    assert (second.outputs, second.metadata.replayed) == (first.outputs, True)


@pytest.mark.parametrize(("level", "events"), [("facts_only", False), ("full_events", True)])
def test_contract_determines_the_stored_state(workspace: Path, level: str, *, events: bool) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS.replace("full_events", level), impl=ASKER)
    adapter = open_adapter(workspace)
    adapter.invoke("asker", {"count": 1}, "ctx")
    adapter.invoke("asker", {"name": "a"}, "ctx", resume=True)

    with open_state_store("ctx", StateOptions(redactor=build_redactor(), runs=workspace / "runs")) as store:
        assert store.list_facts("inputs") == {"values": {"count": 1, "name": "a"}}
        assert store.list_facts("memory") == {"calls": 2}
        assert store.list_facts("outputs")["values"] == {"text": "a", "calls": 2, "turn": 2}
        told = [event.event_type for event in store.list_events()]
    assert told == (["request", "input_request", "input_response", "response"] if events else [])


def test_secret_input_is_not_stored(workspace: Path) -> None:
    write_skill(workspace / "skills", "asker", contract=ASKS, impl=ASKER)
    secret = "sk-" + "a1B2" * 8

    open_adapter(workspace).invoke("asker", {"count": 1, "api_key": secret}, "ctx")

    assert secret.encode() not in b"".join(path.read_bytes() for path in (workspace / "runs").glob("state.db*"))


@pytest.mark.parametrize(
    ("contract", "impl", "expected"),
    [
        ("timeout_seconds: 1", "import time\ndef execute(c):\n    time.sleep(60)\n", ("timeout", "timeout")),
        ("", "def execute(c):\n    raise ValueError('no luck')\n", ("failed", "impl_raised")),
        ("", "def execute(c):\n    return 5\n", ("failed", "impl_raised")),
        ("", "def execute(c):\n    return {'state': 'done'}\n", ("failed", "invalid_answer")),
        ("", "def execute(c):\n    return {'state': 'failed'}\n", ("failed", "invalid_answer")),
        ("", "import os\ndef execute(c):\n    os._exit(3)\n", ("failed", "execution_failed")),
        ("", "def run(c):\n    return {}\n", ("failed", "invalid_impl")),
        ("", "import asyncio\ndef execute(c):\n    return {}\n", ("blocked", "not_sync_safe")),
        ("sync_celery: false", "import asyncio\ndef execute(c):\n    return {}\n", ("completed", "")),
        ("execution_mode: wrong", "def execute(c):\n    return {}\n", ("blocked", "contract_invalid")),
        ("depends_on: [missing]", "def execute(c):\n    return {}\n", ("blocked", "dependency_missing")),
        ("required_artifacts: [a.txt]", "def execute(c):\n    return {}\n", ("failed", "invalid_output")),
        ("output_schema: {required: [x]}", "def execute(c):\n    return {'y': 1}\n", ("failed", "invalid_output")),
        ("", "def execute(c):\n    return {'outputs': {}, 'artifacts': {'../x': 'y'}}\n", ("failed", "invalid_output")),
        ("", "def execute(c):\n    c.advise('?')\n", ("blocked", "advisor_not_allowed")),
        ("execution_mode: hybrid", "def execute(c):\n    return {'said': c.advise('?')}\n", ("completed", "")),
        (
            "failure_modes: [{code: busy, retryable: true}]",
            "def execute(c):\n    return {'state': 'failed', 'errors': [{'code': 'odd', 'message': 'm'}]}\n",
            ("failed", "undeclared_failure"),
        ),
        ("input_schema: {required: [x]}", "def execute(c):\n    return {}\n", ("blocked", "invalid_input")),
    ],
)
def test_failures_have_a_state_and_a_code(workspace: Path, contract: str, impl: str, expected: tuple[str, str]) -> None:
    write_skill(workspace / "skills", "sample", contract=contract, impl=impl)

    assert detail(open_adapter(workspace).invoke("sample", {}, "ctx")) == expected


def test_skill_may_list_the_files_that_it_wrote(workspace: Path) -> None:
    impl = """
from metier.capabilities.protocol import AgentResponse
def execute(context):
    (context.artifacts / "a.txt").write_text("mine")
    return AgentResponse(outputs={"done": True}, artifacts=(context.inputs["name"],))
"""
    contract = "autonomy_level: suggest\nside_effects: [writes_files]"
    write_skill(workspace / "skills", "writer", contract=contract, impl=impl)

    done = open_adapter(workspace).invoke("writer", {"name": "a.txt"}, "one")
    absent = open_adapter(workspace).invoke("writer", {"name": "b.txt"}, "two")
    outside = open_adapter(workspace).invoke("writer", {"name": "../../../skills/writer/impl.py"}, "three")

    assert Path(done.artifacts[0]).read_text(encoding="utf-8") == "mine"
    assert detail(absent) == ("failed", "invalid_output")
    assert "'b.txt', but there is no such file" in absent.message
    assert detail(outside) == ("failed", "invalid_output")


def test_oversized_answer_is_rejected_without_waiting(workspace: Path) -> None:
    impl = "def execute(c):\n    return {'text': 'x' * 5_000_000}\n"
    write_skill(workspace / "skills", "talker", contract="timeout_seconds: 300", impl=impl)

    response = open_adapter(workspace).invoke("talker", {}, "ctx")

    assert detail(response) == ("failed", "answer_too_large")
    assert "write large data to an artifact" in response.message


def test_oversized_advice_request_ends_the_turn_at_once(workspace: Path) -> None:
    impl = "def execute(c):\n    return {'advice': c.advise('x' * 5_000_000, {'type': 'object'})}\n"
    write_skill(workspace / "skills", "asker", contract="timeout_seconds: 300\nexecution_mode: hybrid", impl=impl)

    class Silent:
        async def ask(self, prompt: str, schema: Schema | None) -> str:
            raise AssertionError(f"{len(prompt)} {schema}")

    executor = replace(create_executor(workspace), advisor=Silent())
    response = create_agent_adapter(executor).invoke("asker", {}, "ctx")

    assert "more than 4194304 bytes" in response.message


def test_artifacts_are_kept_apart_for_each_conversation(workspace: Path) -> None:
    impl = "def execute(c):\n    return {'outputs': {}, 'artifacts': {'out/a.txt': c.inputs['text']}}\n"
    write_skill(workspace / "skills", "writer", contract="required_artifacts: [out/a.txt]", impl=impl)
    adapter = open_adapter(workspace)

    one = adapter.invoke("writer", {"text": "one"}, "run/1")
    two = adapter.invoke("writer", {"text": "two"}, "run-1")

    assert Path(one.artifacts[0]).read_text(encoding="utf-8") == "one"
    assert Path(two.artifacts[0]).read_text(encoding="utf-8") == "two"


def test_answer_may_be_a_response_object(workspace: Path) -> None:
    impl = """
from metier.capabilities.protocol import AgentResponse, InputRequest, MissingField, TaskState

def execute(context):
    if context.turn == 1:
        fields = (MissingField(name="x", description="Anything"),)
        return AgentResponse(state=TaskState.INPUT_REQUIRED, input_request=InputRequest(missing_fields=fields))
    return AgentResponse(outputs={"x": context.inputs["x"]})
"""
    contract = "interaction_outcomes:\n  allowed_intermediate_states: [input_required]"
    write_skill(workspace / "skills", "objects", contract=contract, impl=impl)
    adapter = open_adapter(workspace)

    assert adapter.invoke("objects", {}, "ctx").message == "Needed: x (Anything)"
    assert adapter.invoke("objects", {"x": 1}, "ctx", resume=True).outputs == {"x": 1}


def test_module_next_to_the_code_can_be_imported(workspace: Path) -> None:
    impl = "from .words import WORD\ndef execute(c):\n    return {'word': WORD}\n"
    folder = write_skill(workspace / "skills", "pair", impl=impl)
    (folder / "words.py").write_text("WORD = 'yes'\n", encoding="utf-8")

    assert open_adapter(workspace).invoke("pair", {}, "ctx").outputs == {"word": "yes"}
    assert not list(folder.rglob("*.pyc"))


def test_code_of_an_untrusted_skill_does_not_run(workspace: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    impl = f"open({str(mark)!r}, 'w').close()\ndef execute(c):\n    return {{}}\n"
    write_skill(Path.home() / ".agent" / "skills", "stranger", impl=impl)

    response = open_adapter(workspace).invoke("stranger", {}, "ctx")

    assert detail(response) == ("blocked", "permission_denied")
    assert "agent skill trust stranger" in response.message
    assert not mark.exists()


def test_missing_skill_is_named_with_the_closest_match(workspace: Path) -> None:
    with pytest.raises(SkillNotFound, match="schema-infre") as raised:
        open_adapter(workspace).invoke("schema-infre", {}, "ctx")

    assert "schema-infer" in raised.value.hint


@pytest.mark.anyio
async def test_sync_call_in_an_event_loop_is_rejected_before_any_effect(workspace: Path) -> None:
    write_skill(workspace / "skills", "echo")
    adapter = open_adapter(workspace)

    with pytest.raises(UsageError, match="event loop"):
        adapter.invoke("echo", {}, "ctx")
    assert (await anyio.to_thread.run_sync(lambda: adapter.invoke("echo", {}, "ctx"))).state == "completed"


KILLED = """
import sys
from pathlib import Path
from metier import create_agent_adapter
from metier import create_executor
adapter = create_agent_adapter(create_executor(Path(sys.argv[1])))
adapter.invoke("slow", {}, "ctx", message_id="m")
"""


@pytest.mark.parametrize(("repeat", "state"), [("keyed", "completed"), ("opaque", "escalated")])
def test_killed_turn_is_repeated_only_if_that_is_safe(workspace: Path, repeat: str, state: str) -> None:
    contract = f"autonomy_level: implement\nside_effects: {{kinds: [writes_files], repeat: {repeat}}}\n"
    contract += "interaction_outcomes: {allowed_intermediate_states: [input_required]}"
    impl = """
import os, signal, time
def execute(context):
    with open(context.workspace / "effects", "a") as stream:
        stream.write(context.idempotency_key + "\\n")
    if not (context.workspace / "again").exists():
        (context.workspace / "begun").touch()
        time.sleep(600)
    return {"outputs": {"key": context.idempotency_key}}
"""
    write_skill(workspace / "skills", "slow", contract=contract, impl=impl)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(workspace)]) as process:
        while not (workspace / "begun").exists():
            assert process.poll() is None
        process.kill()
    (workspace / "again").touch()

    response = open_adapter(workspace).invoke("slow", {}, "ctx", resume=True, message_id="m")

    assert response.state.value == state
    keys = (workspace / "effects").read_text(encoding="utf-8").splitlines()
    assert len(keys) == (2 if repeat == "keyed" else 1)
    assert len(set(keys)) == 1
    assert json.loads(response.model_dump_json())["state"] == state
