"""Questions of skills: choices and required fields follow the contract, initially and on repetition."""

from pathlib import Path

from capability_skills import write_skill
from test_adapter import detail, open_adapter

from metier.capabilities.protocol import AgentResponse, MissingField, TaskState

CONTRACT = """
interaction_outcomes:
  allowed_intermediate_states: [input_required]
  input_request_schema:
    - {name: color, description: The color of the bike, enum: [red, blue]}
    - {name: bell, type: boolean, required: false}
input_schema:
  type: object
  properties:
    color: {type: string}
    size: {type: string, enum: [small, large], description: The size of the frame}
    count: {type: integer, minimum: 1}
    note: {type: string}
"""
IMPL = """
def execute(context):
    if "color" not in context.inputs:
        fields = [{"name": "color"}, {"name": "bell"}, {"name": "size"}, {"name": "note", "required": False}]
        return {"state": "input_required", "input_request": {"message": "Which bike?", "missing_fields": fields}}
    return {"outputs": {"bike": context.inputs}}
"""


def fields_of(response: AgentResponse) -> dict[str, MissingField]:
    assert response.input_request is not None, response
    return {field.name: field for field in response.input_request.missing_fields}


def test_first_question_of_a_skill_carries_the_choices_of_its_contract(workspace: Path) -> None:
    write_skill(workspace / "skills", "bikes", contract=CONTRACT, impl=IMPL)

    fields = fields_of(open_adapter(workspace).invoke("bikes", {}, "ctx"))

    assert {name: field.enum for name, field in fields.items()} == {
        "color": ("red", "blue"),
        "bell": (),
        "size": ("small", "large"),
        "note": (),
    }
    assert (fields["color"].description, fields["size"].description) == (
        "The color of the bike",
        "The size of the frame",
    )
    assert fields["bell"].type == "boolean"


def test_repeated_question_marks_the_same_fields_as_required(workspace: Path) -> None:
    write_skill(workspace / "skills", "bikes", contract=CONTRACT, impl=IMPL)
    adapter = open_adapter(workspace)

    first = fields_of(adapter.invoke("bikes", {}, "ctx"))
    wrong = adapter.invoke("bikes", {"color": "green", "note": 5}, "ctx", resume=True)
    missing = adapter.invoke("bikes", {"note": "x"}, "ctx", resume=True)
    done = adapter.invoke("bikes", {"color": "red"}, "ctx", resume=True)

    assert {name: field.required for name, field in first.items()} == {
        "color": True,
        "bell": False,
        "size": True,
        "note": False,
    }
    assert detail(wrong) == ("input_required", "invalid_input")
    assert fields_of(wrong) == first
    assert fields_of(missing) == {name: field for name, field in first.items() if name != "note"}
    assert done.outputs == {"bike": {"note": "x", "color": "red"}}


def test_invalid_optional_input_is_asked_for_as_optional(workspace: Path) -> None:
    write_skill(workspace / "skills", "bikes", contract=CONTRACT + "  required: [size]\n", impl=IMPL)

    fields = fields_of(open_adapter(workspace).invoke("bikes", {"color": "red", "count": 0}, "ctx"))

    assert {name: field.required for name, field in fields.items()} == {"size": True, "count": False}
    assert fields["size"].enum == ("small", "large")


LOGIN = """
interaction_outcomes: {allowed_intermediate_states: [input_required]}
input_schema:
  type: object
  properties:
    api_key: {type: string, description: The key of the service}
    user: {type: string}
"""
LOGS_IN = """
def execute(context):
    if "user" not in context.inputs:
        return {"state": "input_required", "input_request": {"missing_fields": [{"name": "user"}]}}
    return {"outputs": {"length": len(context.inputs.get("api_key", "")), "names": sorted(context.inputs)}}
"""
KEY = "sk-" + "a1B2" * 8


def test_secret_input_of_an_earlier_turn_is_asked_for_again(workspace: Path) -> None:
    write_skill(workspace / "skills", "login", contract=LOGIN, impl=LOGS_IN)
    adapter = open_adapter(workspace)

    adapter.invoke("login", {"api_key": KEY, "config": {"password": "hunter2hunter2"}}, "ctx")
    again = adapter.invoke("login", {"user": "ada"}, "ctx", resume=True)
    done = adapter.invoke("login", {"api_key": KEY}, "ctx", resume=True)

    assert detail(again) == ("input_required", "missing_input")
    assert again.message == (
        "Secrets are not stored between turns, give them again: api_key (The key of the service); config"
    )
    assert {name: field.required for name, field in fields_of(again).items()} == {"api_key": False, "config": False}
    assert done.state == TaskState.COMPLETED
    assert done.outputs == {"length": len(KEY), "names": ["api_key", "user"]}


def test_secret_input_in_the_answer_is_not_asked_for_again(workspace: Path) -> None:
    write_skill(workspace / "skills", "login", contract=LOGIN, impl=LOGS_IN)
    adapter = open_adapter(workspace)

    adapter.invoke("login", {"api_key": KEY}, "ctx")
    done = adapter.invoke("login", {"user": "ada", "api_key": KEY}, "ctx", resume=True)

    assert done.outputs == {"length": len(KEY), "names": ["api_key", "user"]}
