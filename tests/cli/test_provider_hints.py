"""A run ended by its provider: following the hint of the message lets the run complete."""

import json
import re
import shlex
import socket
from typing import Any

import pytest
from model_server import ModelServer, calls, fails, says
from run_workspace import QUICK, Workspace, use_model

type Capture = pytest.CaptureFixture[str]

TOO_LONG = fails(400, "This model's maximum context length is 8192 tokens")
FINISH = json.dumps(
    {
        "selected_skill": None,
        "reasoning_summary": "",
        "required_disclosure_paths": [],
        "planned_actions": [{"type": "finish", "params": {"result": "Done."}, "expected_output": ""}],
    }
)


def find_commands(shown: str) -> list[list[str]]:
    """Return the commands of a message: those in backticks and in the line `next:`."""
    named = re.findall(r"`(agent [^`]+)`", shown) + re.findall(r"^next: +(agent .+)$", shown, re.MULTILINE)
    return [shlex.split(each)[1:] for each in dict.fromkeys(named)]


def fail(workspace: Workspace, capsys: Capture, *flags: str) -> str:
    capsys.readouterr()
    assert workspace.agent("run", "Say hello", *flags) == 8
    return capsys.readouterr().err


def follow_hint(workspace: Workspace, shown: str, **values: str) -> int:
    """Run the commands of a message in order, with filled placeholders. Return the last exit code."""
    code = -1
    for command in find_commands(shown):
        code = workspace.agent(*[values.get(word, word) for word in command])
        assert code == 0 or command[0] == "resume", (command, code)
    return code


def changes(workspace: Workspace) -> list[dict[str, Any]]:
    return [event["payload"] for event in workspace.events() if event["event_type"] == "model_changed"]


def check_replay(workspace: Workspace) -> None:
    assert workspace.agent("replay", workspace.run_ids()[-1], "--execute") == 0


def test_resume_uses_a_smaller_window_after_context_too_long(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(TOO_LONG, says("Done."))
    shown = fail(workspace, capsys)
    assert "(context_too_long)" in shown

    assert follow_hint(workspace, shown, TOKENS="9000") == 0
    assert changes(workspace)[0]["settings"] == ["model.max_context_tokens"]
    check_replay(workspace)


def test_a_smaller_prompt_is_tried_once_automatically(workspace: Workspace, model: ModelServer) -> None:
    workspace.write("long.txt", "line of the file\n" * 3000)
    workspace.configure(model={**use_model(model), "max_context_tokens": 60_000}, runtime=QUICK)
    model.follow(calls("Read", path="long.txt"), TOO_LONG, calls("Read", path="agent.yaml"), says("Done."))

    assert workspace.agent("run", "Read a file", "--quiet") == 0

    refused, smaller, next_turn = (len(json.dumps(body["messages"])) for body in model.received[1:])
    assert smaller < 0.7 * refused
    assert next_turn < 0.7 * refused
    check_replay(workspace)


def test_resume_uses_a_new_base_url_after_connection_lost(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        dead = {**use_model(model), "providers": {"openai": {"base_url": url}}}
        workspace.configure(model=dead, runtime={**QUICK, "max_llm_retries": 0})
        shown = fail(workspace, capsys)
    assert "(connection_lost)" in shown
    model.follow(says("Done."))

    assert follow_hint(workspace, shown, URL=model.url) == 0
    assert changes(workspace)[0]["settings"] == ["model.providers.openai.base_url"]
    check_replay(workspace)


def test_resume_replaces_a_model_that_was_not_found(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(fails(404, "no such model"), says("Done."))
    shown = fail(workspace, capsys)
    assert "(not_found)" in shown

    assert follow_hint(workspace, shown, NAME="m2") == 0
    assert model.received[-1]["model"] == "m2"
    run_id = workspace.run_ids()[-1]
    assert changes(workspace)[0] | {"changed_by": ""} == {
        "provider": "openai", "model": "m2", "settings": ["model.name"], "changed_by": "",
    }  # fmt: skip
    assert json.loads((workspace.folder / "runs" / run_id / "run.json").read_text())["model"] == "m2"
    check_replay(workspace)


def test_resume_uses_json_mode_after_tools_unsupported(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.configure(model={**use_model(model), "structured_output_mode": "native"}, runtime=QUICK)
    model.follow(fails(400, "this model does not support tools"), says(FINISH))
    shown = fail(workspace, capsys)
    assert "(tools_unsupported)" in shown

    assert follow_hint(workspace, shown) == 0
    assert "tools" not in model.received[-1]
    check_replay(workspace)


def test_the_provider_flag_overrides_the_settings_at_resume(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    """A choice for one run is not overridden by the settings file."""
    workspace.configure(
        model={"provider": "anthropic", "name": "claude-x", "providers": {"openai": {"base_url": model.url}}},
        runtime=QUICK,
    )
    model.follow(fails(404, "no such model"), says("Done."))
    shown = fail(workspace, capsys, "--provider", "openai", "--model", "m")
    run_id = workspace.run_ids()[-1]
    assert "(not_found)" in shown

    assert workspace.agent("resume", run_id, "--quiet") == 0
    assert model.received[-1]["model"] == "m"
    assert changes(workspace) == []


def test_a_run_without_a_provider_error_keeps_its_model(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("ask_user", question="Which?"), says("Done."))
    assert workspace.agent("run", "Say hello", "--quiet") == 4
    run_id = workspace.run_ids()[-1]
    capsys.readouterr()

    assert workspace.agent("resume", run_id, "--input", "answer=x", "--model", "m2") == 2
    assert "keeps its model 'm'" in capsys.readouterr().err
    assert workspace.agent("resume", run_id, "--input", "answer=x", "--quiet") == 0
    assert model.received[-1]["model"] == "m"


def test_later_steps_of_a_task_use_the_new_base_url(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    workspace.write(".agent/tasks/two/TASK.md", "---\nname: Two\nnext: next.md\n---\n\nDo the first thing.\n")
    workspace.write(".agent/tasks/two/next.md", "---\nname: Next\n---\n\nDo the second thing.\n")
    model.follow(fails(404, "no such model"), says("One."), says("Two."))
    assert workspace.agent("task", "run", "two", "--quiet") == 8
    assert workspace.agent("config", "set", "model.name", "m2") == 0

    assert workspace.agent("resume", workspace.run_ids()[-1], "--quiet") == 0
    assert [body["model"] for body in model.received] == ["m", "m2", "m2"]


def test_invalid_settings_at_resume_can_be_corrected(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(fails(404, "no such model"), says("Done."))
    fail(workspace, capsys)
    run_id = workspace.run_ids()[-1]
    workspace.configure(model={**use_model(model), "fallback_models": ["gemini/g"]}, runtime=QUICK)

    assert workspace.agent("resume", run_id, "--quiet") == 2
    assert "GEMINI_API_KEY" in capsys.readouterr().err
    workspace.configure(model=use_model(model), runtime=QUICK)
    assert workspace.agent("resume", run_id, "--model", "m2", "--quiet") == 0
    assert model.received[-1]["model"] == "m2"
    check_replay(workspace)
