"""`agent policy`: explain single calls and batches, test, backtest."""

import io
import json
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

RULES = """rules:
  - tool: Read
    allow: true
    when: {path: {startsWith: src/}}
  - tool: Write
    allow: false
    reason: Nothing is written here
"""


def write(workspace: Workspace, name: str, text: str) -> Path:
    file = workspace.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_explain_prints_the_verdict_the_rule_and_the_canonical_arguments(workspace: Workspace, capsys: Capture) -> None:
    write(workspace, "rules.yaml", RULES)
    call = ["policy", "explain", "Read", "--rules", "rules.yaml", "--root", "/repo", "--json"]

    assert workspace.agent(*call, "--args", '{"path": "src/../src/a.py"}') == 0
    allowed = json.loads(capsys.readouterr().out)
    assert workspace.agent(*call, "--args", '{"path": "src/../../etc/passwd"}') == 0
    asked = json.loads(capsys.readouterr().out)

    assert (allowed["verdict"], allowed["scope"], allowed["arguments"]) == (
        "allow",
        "agent",
        {"path": "/repo/src/a.py"},
    )
    assert allowed["rule"] == {"number": 1, "file": "rules.yaml", "line": 2}
    assert (asked["verdict"], asked["rule"], asked["arguments"]) == ("ask", None, {"path": "/etc/passwd"})


def test_a_batch_prints_one_verdict_per_line_in_order(
    workspace: Workspace, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(workspace, "rules.yaml", RULES)
    lines: list[dict[str, object]] = [
        {"tool": "Write", "args": {"path": "a"}},
        {"tool": "Read", "args": {"path": "src/a"}},
        {"tool": "Read", "args": {"n": "1"}, "rules": [{"tool": "Read", "allow": True, "when": {"n": {"equals": 1}}}]},
        {"tool": "Read", "args": {"n": 1}, "rules": [{"tool": "Read", "allow": True, "when": {"n": {"equals": 1}}}]},
        {"tool": "Read", "args": {"path": "src/a"}, "rules": "rules.yaml"},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(line) + "\n" for line in lines)))

    assert workspace.agent("policy", "explain", "--rules", "rules.yaml", "--batch", "-") == 0

    verdicts = [json.loads(line)["verdict"] for line in capsys.readouterr().out.splitlines()]
    assert verdicts == ["deny", "allow", "ask", "allow", "allow"]


def test_an_invalid_line_prints_its_reason_and_the_others_are_evaluated(
    workspace: Workspace, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"tool": "Read", "rules": [{"tool": "Raed", "allow": true}]}\nnonsense\n{"tool": "Read", "rules": []}\n'
    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    assert workspace.agent("policy", "explain", "--batch", "-") == 2

    first, second, third = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["problems"] == [":1: error: No tool is called 'Raed' [unknown_tool] (Did you mean 'Read'?)"]
    assert (second["error"].startswith("A line is not JSON"), second["line"]) == (True, 2)
    assert third["verdict"] == "ask"


def test_an_invalid_rule_file_exits_with_2_and_shows_file_and_line(workspace: Workspace, capsys: Capture) -> None:
    write(workspace, "rules.yaml", "rules:\n  - tool: Read\n    alow: true\n")

    assert workspace.agent("policy", "explain", "Read", "--rules", "rules.yaml") == 2

    assert "rules.yaml:3: error: Unknown key 'alow' [unknown_key] (Did you mean 'allow'?)" in capsys.readouterr().err


def test_the_rules_of_an_agent_restrict_those_of_the_host(workspace: Workspace, capsys: Capture) -> None:
    write(workspace, ".agent/policy.yaml", "rules:\n  - tool: Write\n    allow: true\n")
    approvals = "tool_approvals:\n  rules:\n    - tool: Write\n      verdict: ask\n"
    write(workspace, ".agent/agents/clerk/AGENT.md", f"---\nname: Clerk\n{approvals}---\nWork.\n")

    given = ("--args", '{"path": "a.txt", "content": "x"}', "--json")
    workspace.agent("policy", "explain", "Write", *given)
    host = json.loads(capsys.readouterr().out)
    workspace.agent("policy", "explain", "Write", "--agent", "clerk", *given)
    both = json.loads(capsys.readouterr().out)

    assert host["verdict"] == "allow"
    assert [(said["scope"], said["verdict"]) for said in both["scopes"]] == [("host", "allow"), ("agent", "ask")]
    assert both["verdict"] == "ask"
    assert workspace.agent("policy", "explain", "Write", "--agent", "clark") == 2
    assert "Did you mean 'clerk'?" in capsys.readouterr().err


def test_the_examples_of_every_file_are_checked(workspace: Workspace, capsys: Capture) -> None:
    write(workspace, ".agent/policy.yaml", RULES)
    example = "    - tool: Write\n      verdict: ask\n      examples: {ask: [{path: a}]}\n"
    agent = write(
        workspace, ".agent/agents/clerk/AGENT.md", f"---\nname: Clerk\ntool_approvals:\n  rules:\n{example}---\n"
    )

    assert workspace.agent("policy", "test") == 0
    assert capsys.readouterr().out == "3 rules and 1 example passed\n"

    agent.write_text(agent.read_text(encoding="utf-8").replace("{ask: [", "{deny: ["), encoding="utf-8")
    assert workspace.agent("policy", "test") == 2
    assert "AGENT.md:7: error: Example 1 under 'deny' is judged 'ask' [failed_example]" in capsys.readouterr().err


def test_a_run_does_not_start_with_an_invalid_policy(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    write(workspace, ".agent/policy.yaml", "rules:\n  - tool: script_rum\n    allow: true\n")

    assert workspace.agent("run", "Greet") == 2

    assert "policy.yaml:2: error: No tool is called 'script_rum' [unknown_tool]" in capsys.readouterr().err
    assert model.received == []


def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    write(workspace, ".agent/policy.yaml", "rules:\n  - tool: script_run\n    allow: false\n    reason: No scripts\n")
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("I will not."))

    assert workspace.agent("run", "Greet") == 0

    assert capsys.readouterr().out == "I will not.\n"
    told = model.received[-1]["messages"][-1]["content"]
    assert "Not run: Rule 1 of the host denies this call: No scripts" in told


def test_backtest_lists_past_calls_that_new_rules_decide_differently(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Done."))
    assert workspace.agent("run", "Greet") == 0
    capsys.readouterr()

    workspace.agent("policy", "backtest", "--json")
    before = json.loads(capsys.readouterr().out)
    write(workspace, ".agent/policy.yaml", "rules:\n  - tool: script_run\n    verdict: ask\n")
    workspace.agent("policy", "backtest", "--runs", "5", "--json")
    after = json.loads(capsys.readouterr().out)

    assert (before["runs"], before["calls"], before["changes"]) == (1, 1, [])
    (change,) = after["changes"]
    assert (change["tool"], change["was"], change["now"]) == ("script_run", "allow", "ask")


def test_a_resumed_run_keeps_its_original_policy(workspace: Workspace, model: ModelServer) -> None:
    policy = write(workspace, ".agent/policy.yaml", "rules:\n  - tool: script_run\n    allow: false\n")
    model.follow(
        calls("ask_user", question="Which?"),
        calls("script_run", skill_name="greeter", script_name="greet"),
        says("No."),
    )
    assert workspace.agent("run", "Greet") == 4
    policy.unlink()

    assert workspace.agent("resume", "latest", "--input", "answer=a") == 0

    assert "denies this call" in model.received[-1]["messages"][-1]["content"]
    changed = [event for event in workspace.events() if event["event_type"] == "pinned_definition_used"]
    assert [event["payload"]["definition"] for event in changed] == ["policy"]
