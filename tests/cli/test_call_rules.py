"""Reading and answering calls: short names, refusals in one form, failures as plain JSON, calls in JSON mode."""

import json
from typing import Any

import pytest
from agent_files import add_agent
from mcp_workspace import accept, use_hostile
from model_server import ModelServer, Reply, calls, says
from run_workspace import QUICK, Workspace, use_model


def greets(tool: str) -> Reply:
    return Reply(calls=((tool, {"name": "Ada"}),))


def read_results(model: ModelServer) -> list[str]:
    """The results of the model's calls in the last request."""
    return [message["content"] for message in model.received[-1]["messages"] if message["role"] == "tool"]


@pytest.fixture
def greeting(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("AGENT_SKILLS", "hello-extended")
    return workspace


def test_toolset_tool_is_called_by_its_short_name(greeting: Workspace, model: ModelServer) -> None:
    model.follow(greets("greet_in_language"), says("Done."))

    assert greeting.agent("run", "-q", "Greet") == 0

    [result] = read_results(model)
    assert json.loads(result)["success"] is True
    assert "hello-extended.greet_in_language" in json.dumps(greeting.events())
    assert greeting.agent("replay", "latest", "--execute") == 0


def test_ambiguous_short_name_is_rejected_with_both_names(greeting: Workspace, model: ModelServer) -> None:
    folder = greeting.add_skill("other", "Greet too.")
    text = (
        (folder / "SKILL.md").read_text().replace("name: other", "name: other\ntoolsets: [toolsets.greeting:Greeting]")
    )
    (folder / "SKILL.md").write_text(text)
    (folder / "toolsets").mkdir()
    (folder / "toolsets" / "greeting.py").write_text(
        "from metier.tools.toolsets import AgentToolset\n"
        "class Greeting(AgentToolset):\n"
        "    def get_tools(self):\n        return [self.greet_in_language]\n"
        "    async def greet_in_language(self, name: str) -> dict:\n"
        "        \"\"\"Greet.\"\"\"\n        return {'success': True, 'result': name, 'message': name}\n"
    )
    model.follow(greets("greet_in_language"), says("Done."))

    assert greeting.agent("run", "-q", "Greet") == 0

    failure = json.loads(read_results(model)[0])
    assert failure["error"] == "unknown_tool"
    assert "hello-extended__greet_in_language" in failure["message"]
    assert "other__greet_in_language" in failure["message"]


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (calls("nothing"), "unknown_tool", "There is no tool 'nothing'"),
        (calls("Read"), "invalid_arguments", "Invalid input for 'Read'"),
        (calls("script_run", skill_name="greeter"), "invalid_arguments", "Invalid input for 'script_run'"),
        (
            calls("Write", path="a.txt", content="x"),
            "permission_denied",
            "Rule 1 of the host denies",
        ),
        (
            calls("script_run", skill_name="greeter", script_name="greet"),
            "permission_denied",
            "Rule 2 of the host denies",
        ),
        (calls("use_skill", skill="nobody"), "unknown_tool", "There is no skill 'nobody'"),
    ],
)
def test_every_refusal_has_the_same_form(
    *, call: Reply, code: str, words: str, workspace: Workspace, model: ModelServer
) -> None:
    rules = "rules:\n  - {tool: Write, allow: false, reason: No writing}\n  - {tool: script_run, allow: false}\n"
    workspace.write(".agent/policy.yaml", rules)
    model.follow(call, says("Done."))

    assert workspace.agent("run", "-q", "Greet") == 0

    [result] = read_results(model)
    failure = json.loads(result)
    assert (failure["success"], failure["error"]) == (False, code)
    assert words in failure["message"]
    assert set(failure) == {"success", "error", "message"}


def test_tool_outside_the_agent_is_denied_in_the_same_form(workspace: Workspace, model: ModelServer) -> None:
    add_agent(workspace.folder, "reader", "tools: [Read]")
    model.follow(calls("Write", path="a.txt", content="x"), says("Done."))

    assert workspace.agent("run", "-q", "--agent", "reader", "Greet") == 0

    assert json.loads(read_results(model)[0])["success"] is False


def test_plain_text_failure_keeps_its_error_mark_in_every_format(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Read", path="nowhere.txt"), says("Done."))

    assert workspace.agent("run", "-q", "Greet") == 0

    assert read_results(model)[0].startswith("Error: ")


@pytest.mark.parametrize("name", ["hello-extended__greet_in_language", "greet_in_language"])
def test_native_call_in_json_mode_is_executed(name: str, greeting: Workspace, model: ModelServer) -> None:
    greeting.configure(model={**use_model(model), "structured_output_mode": "json"}, runtime=QUICK)
    done: dict[str, Any] = {"planned_actions": [{"type": "finish", "params": {"result": "Hello Ada"}}]}
    model.follow(greets(name), says(json.dumps(done)))

    assert greeting.agent("run", "-q", "Greet") == 0

    assert "tools" not in model.received[0]
    assert '"success": true' in json.dumps(model.received[1]["messages"]).replace("\\", "")
    assert greeting.agent("replay", "latest", "--execute") == 0


FINISHES = [
    '{"params": {"result": "It is done."}}',
    '{"type": "finish", "params": {"result": "It is done."}}',
    '{"name": "finish", "arguments": {"result": "It is done."}}',
    '{"name": "finish", "arguments": "{\\"result\\": \\"It is done.\\"}"}',
    '{"type": "function", "function": {"name": "finish", "arguments": {"result": "It is done."}}}',
    '{"type": "finish", "result": "It is done."}',
]


@pytest.mark.parametrize("text", [*FINISHES, *(f"```json\n{text}\n```" for text in FINISHES[:3])])
def test_finish_written_as_text_is_printed_as_its_result(
    text: str, workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(says(text))

    assert workspace.agent("run", "Do it") == 0

    shown = capsys.readouterr()
    assert shown.out == "It is done.\n"
    assert "params" not in shown.err
    assert "arguments" not in shown.err
    assert workspace.agent("replay", "latest", "--execute") == 0


def test_finish_written_as_text_ends_a_run_in_json_mode(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.configure(model={**use_model(model), "structured_output_mode": "json"}, runtime=QUICK)
    model.follow(says(FINISHES[1]))

    assert workspace.agent("run", "-q", "Do it") == 0

    assert capsys.readouterr().out == "It is done.\n"
    assert len(model.received) == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"params": {"result": 1, "other": 2}}',
        '{"result": "It is done."}',
        '{"name": "Ada", "arguments": {"result": "x"}}',
        'Write this:\n```json\n{"type": "finish", "params": {"result": "x"}}\n```',
    ],
)
def test_other_json_is_printed_as_it_is(
    text: str, workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(says(text))

    assert workspace.agent("run", "-q", "Do it") == 0

    assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.parametrize("is_json", [False, True])
def test_skill_and_script_are_named_by_either_argument(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], *, is_json: bool
) -> None:
    mode = "json" if is_json else "native"
    workspace.configure(model={**use_model(model), "structured_output_mode": mode}, runtime=QUICK)
    short = {"skill": "greeter", "script": "greet"}
    if is_json:
        planned = {"type": "call_tool", "params": {"tool": "script_run", "arguments": short}}
        model.follow(
            says(json.dumps({"planned_actions": [{"type": "call_skill", "params": {"skill_name": "greeter"}}]})),
            says(json.dumps({"planned_actions": [planned]})),
            says(json.dumps({"planned_actions": [{"type": "finish", "params": {"result": "Done."}}]})),
        )
    else:
        model.follow(
            calls("use_skill", skill_name="greeter"),
            calls("script_list", skill="greeter"),
            calls("script_help", **short),
            calls("script_run", **short),
            says("Done."),
        )

    assert workspace.agent("run", "-q", "Greet") == 0

    executed = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_step_executed"]
    assert {step["status"] for step in executed} == {"succeeded"}
    assert "hello from the script" in json.dumps(model.received[-1])
    capsys.readouterr()
    assert workspace.agent("runs", "show", "latest") == 0
    assert "script_run greeter  greet" in capsys.readouterr().out
    assert workspace.agent("replay", "latest", "--execute") == 0


def call_hostile(model: ModelServer, workspace: Workspace, *, structured_output_mode: str, call: Reply) -> str:
    """Return the refusal of a call to a tool of the MCP server `hostile`, whose run replays as equal."""
    settings = {**use_model(model), "structured_output_mode": structured_output_mode}
    workspace.configure(model=settings, runtime=QUICK)
    accept(workspace, hostile=use_hostile())
    done: dict[str, Any] = {"planned_actions": [{"type": "finish", "params": {"result": "Done."}}]}
    model.follow(call, says(json.dumps(done)))
    assert workspace.agent("run", "-q", "Count", "--profile", "permissive") == 0
    assert workspace.agent("replay", "latest", "--execute") == 0
    return json.dumps(model.received[-1]["messages"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (calls("hostile___coun"), "did you mean hostile___count"),
        (calls("hostile___count", text=5), "Invalid input for 'hostile___count'"),
    ],
)
def test_error_uses_the_tool_name_that_the_model_must_write(
    *, call: Reply, words: str, workspace: Workspace, model: ModelServer
) -> None:
    told = call_hostile(model, workspace, structured_output_mode="native_with_json_fallback", call=call)

    assert words in told
    assert "hostile/" not in told


def test_error_in_json_mode_uses_the_original_tool_name_of_the_server(workspace: Workspace, model: ModelServer) -> None:
    wrong: dict[str, object] = {"type": "call_tool", "params": {"tool": "hostile/coun", "arguments": {}}}
    call = says(json.dumps({"planned_actions": [wrong]}))

    told = call_hostile(model, workspace, structured_output_mode="json", call=call)

    assert "did you mean hostile/count" in told


def test_error_for_a_disabled_tool_uses_the_name_that_the_model_must_write(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.write(".agent/tool-access.json", '{"tools": {"hostile/count": {"enabled": false}}}')

    told = call_hostile(model, workspace, structured_output_mode="native", call=calls("hostile___count"))

    assert "Tool 'hostile___count' is turned off" in told


def test_failure_of_a_toolset_tool_uses_the_name_that_the_model_must_write(
    greeting: Workspace, model: ModelServer
) -> None:
    model.follow(Reply(calls=(("hello-extended__greet_in_language", {"name": 5}),)), says("Done."))

    assert greeting.agent("run", "-q", "Greet") == 0

    assert "Invalid input for 'hello-extended__greet_in_language'" in json.loads(read_results(model)[0])["message"]
