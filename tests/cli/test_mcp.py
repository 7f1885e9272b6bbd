"""Tools of external servers in a run: real servers and a hostile one."""

import json
import os
import subprocess
from typing import Any

import pytest
from mcp_workspace import accept, count_lines, define, get_reports, is_gone, use_git, use_hostile, use_time
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

RUN = ("run", "Do it", "--quiet")


def get_result(model: ModelServer) -> str:
    """Return the result of the model's last call."""
    return str(model.received[-1]["messages"][-1]["content"])


def get_offered(model: ModelServer) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"] for tool in model.received[-1].get("tools", [])}


def test_a_tool_of_a_real_server_is_offered_and_called(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, time=use_time())
    model.follow(calls("time___get_current_time", timezone="Europe/Berlin"), says("Done."))

    assert workspace.agent(*RUN) == 0

    offered = get_offered(model)["time___get_current_time"]
    assert "timezone" in offered["parameters"]["properties"]
    assert "Europe/Berlin" in get_result(model)
    assert get_reports(workspace) == [("time", "started")]


def test_a_server_pattern_is_matched_in_linear_time_or_its_tool_is_omitted(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    accept(workspace, bad=use_hostile("--patterns"))
    assert "Tool 'bad/looks_ahead' is left out" in capsys.readouterr().err
    model.follow(calls("bad___slow", text="a" * 60 + "!"), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert "does not match '^(a+)+$'" in get_result(model)
    assert "bad___looks_ahead" not in get_offered(model)


def test_a_result_is_validated_against_an_output_pattern_in_linear_time(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile("--patterns"))
    model.follow(calls("bad___structured"), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert "does not match '^(a+)+$'" in get_result(model)


def test_a_run_that_calls_no_tool_of_a_server_does_not_start_it(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(says("Nothing to do."))

    assert workspace.agent(*RUN) == 0

    assert "bad___count" in get_offered(model)
    assert count_lines(workspace, "starts.txt") == 0


def test_a_commit_by_a_real_server_waits_for_approval_and_happens_once(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    git(workspace, "init", "-q")
    (workspace.folder / "a.txt").write_text("a")
    git(workspace, "add", "a.txt")
    policy = "tool_approvals:\n  rules:\n    - {tool: git/git_commit, verdict: ask, reason: look at the message}\n"
    accept(workspace, git=use_git())
    (workspace.folder / ".agent/policy.yaml").write_text(policy)
    model.follow(calls("git___git_commit", repo_path=".", message="First words"), says("Committed."))
    capsys.readouterr()

    assert workspace.agent("run", "Commit it", "--output-format", "json") == 3

    (approval,) = json.loads(capsys.readouterr().out)["approvals"]
    assert (approval["tool"], approval["arguments"]["message"]) == ("git/git_commit", "First words")
    assert git(workspace, "log", "--oneline", check=False) == ""
    assert workspace.agent("approvals", "approve", approval["approval_id"]) == 0
    assert workspace.agent("resume", "latest") == 0
    assert git(workspace, "log", "--format=%s") == "First words\n"


def git(workspace: Workspace, *args: str, check: bool = True) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    if args[0] == "init":
        subprocess.run(["git", *args], cwd=workspace.folder, check=True)
        subprocess.run(["git", "config", "user.name", "t"], cwd=workspace.folder, check=True)
        subprocess.run(["git", "config", "user.email", "t@example.org"], cwd=workspace.folder, check=True)
        return ""
    done = subprocess.run(["git", *identity, *args], cwd=workspace.folder, check=check, capture_output=True, text=True)
    return done.stdout


def test_an_unaccepted_server_is_not_started_and_the_run_reports_it(workspace: Workspace, model: ModelServer) -> None:
    define(workspace, bad=use_hostile())
    model.follow(says("Done."))

    assert workspace.agent(*RUN) == 0
    assert workspace.agent("mcp", "list") == 0

    assert count_lines(workspace, "starts.txt") == 0
    assert "bad___count" not in get_offered(model)
    assert get_reports(workspace) == [("bad", "not_accepted")]


def test_a_changed_definition_must_be_accepted_again(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, bad=use_hostile())
    define(workspace, bad=use_hostile("--other"))
    model.follow(says("Done."))

    assert workspace.agent(*RUN) == 0

    assert "bad___count" not in get_offered(model)
    assert get_reports(workspace) == [("bad", "not_accepted")]


def test_without_a_terminal_nothing_is_accepted_by_accident(workspace: Workspace) -> None:
    define(workspace, bad=use_hostile())

    assert workspace.agent("mcp", "accept", "bad") == 2

    assert count_lines(workspace, "starts.txt") == 0


def test_a_dry_run_lists_the_tools_without_starting_a_server(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    accept(workspace, bad=use_hostile())
    define(workspace, bad=use_hostile(), unknown=use_hostile("--other"))
    capsys.readouterr()

    assert workspace.agent(*RUN, "--dry-run") == 0

    shown = capsys.readouterr().out
    assert "bad/count" in shown
    assert "the tools of unknown" in shown
    assert count_lines(workspace, "starts.txt") == 0
    assert model.received == []


def test_a_server_that_dies_during_a_call_returns_an_error_and_is_restarted(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(calls("bad___die"), calls("bad___count", text="again"), says("Done."))

    assert workspace.agent(*RUN) == 0

    first, second = (message["content"] for message in model.received[-1]["messages"] if message["role"] == "tool")
    assert "MCP server 'bad' ended before it answered: it ended with exit code 3" in first
    assert "counted again" in second
    assert count_lines(workspace, "starts.txt") == 2
    assert count_lines(workspace, "calls.txt") == 2
    assert get_reports(workspace) == [("bad", "started"), ("bad", "ended"), ("bad", "started")]


def test_a_hanging_server_is_killed_after_the_timeout_with_its_children(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    configure(workspace, model, call_timeout_seconds=2)
    model.follow(calls("bad___hang"), says("Too slow."))

    assert workspace.agent(*RUN) == 0

    assert "did not answer within 2 s" in get_result(model)
    child = int((workspace.folder / "child.txt").read_text())
    assert is_gone(child)


def configure(workspace: Workspace, model: ModelServer, **mcp: object) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK, mcp=mcp)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("flood", "characters omitted"),
        ("burst", "it sent a message of more than 4194304 bytes"),
        ("wrong", "is not the result of a tool"),
        ("garbage", "after the garbage"),
        ("refuse", "there is no such thing"),
        ("ask", "asked the model: True"),
    ],
)
def test_the_model_gets_short_sanitized_results_from_a_hostile_server(
    workspace: Workspace, model: ModelServer, tool: str, expected: str
) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(calls(f"bad___{tool}"), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert expected in get_result(model)
    assert len(get_result(model)) < 40_000
    assert "\x1b" not in get_result(model)


def test_a_server_that_keeps_crashing_is_abandoned_and_the_run_continues(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(*[calls("bad___die", text=str(number)) for number in range(6)], says("I give up."))

    assert workspace.agent(*RUN) == 0

    assert "ended 5 times in a row" in get_result(model)
    assert count_lines(workspace, "starts.txt") == 5


def test_a_server_that_fails_to_start_is_reported_with_its_own_message(workspace: Workspace, capsys: Capture) -> None:
    define(workspace, bad=use_hostile("--dead"), gone={"command": "no-such-program-here"})

    assert workspace.agent("mcp", "accept", "--all", "--yes") == 1

    told = capsys.readouterr().err
    assert "it ended with exit code 2; its last words: no configuration found" in told
    assert "it could not be started: No such file or directory" in told


def test_a_tool_with_a_changed_description_must_be_accepted_again(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    accept(workspace, bad=use_hostile())
    (workspace.folder / "changed").touch()
    model.follow(calls("bad___count"), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert "describes differently than before" in get_result(model)
    assert "agent mcp accept bad" in get_result(model)
    assert ".ssh" not in json.dumps(model.received)
    assert count_lines(workspace, "calls.txt") == 0
    assert ("bad", "changed") in get_reports(workspace)
    assert workspace.agent("mcp", "list") == 1
    assert "changed: bad/count" in capsys.readouterr().out
    assert workspace.agent("mcp", "accept", "bad", "--yes") == 0
    assert workspace.agent("mcp", "list") == 0


def test_a_server_that_changes_its_tools_during_a_run_is_detected(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(calls("bad___shift"), calls("bad___count"), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert "describes differently than before" in get_result(model)
    assert count_lines(workspace, "calls.txt") == 1
    assert count_lines(workspace, "starts.txt") == 1


def test_a_killed_agent_leaves_no_server_and_its_call_has_an_unknown_outcome(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    begun = workspace.folder / "begun"
    os.mkfifo(begun)
    model.follow(calls("bad___hang", text=str(begun)), says("Done."))

    with workspace.start(*RUN) as process:
        assert begun.read_text(encoding="utf-8") == "begun"
        process.kill()
        process.communicate(timeout=60)

    assert workspace.agent("resume", "latest", "--quiet") == 4
    assert count_lines(workspace, "calls.txt") == 1
    assert is_gone(int((workspace.folder / "child.txt").read_text()))
    assert workspace.agent("resume", "latest", "--quiet", "--answer", "skip") == 0


def test_a_resumed_run_keeps_its_original_tools(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(calls("bad___refuse"), says("Done."))
    assert workspace.agent("run", "Do it", "--profile", "guarded", "--quiet") == 3
    (workspace.folder / "changed").touch()
    assert workspace.agent("mcp", "accept", "bad", "--yes") == 0

    approval = next(e["payload"]["approval_id"] for e in workspace.events() if e["event_type"] == "approval_requested")
    assert workspace.agent("approvals", "approve", approval) == 0
    assert workspace.agent("resume", "latest", "--quiet") == 0

    assert "describes differently than before" in get_result(model)
    assert count_lines(workspace, "calls.txt") == 0


def test_a_server_gets_allowlisted_variables_and_its_secrets_are_hidden(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "-".join(("quite", "unlikely", "words"))
    monkeypatch.setenv("MY_VALUE", secret)
    monkeypatch.setenv("SOMETHING_ELSE", "not for servers")
    accept(workspace, bad=use_hostile(env={"SERVER_TOKEN": "${MY_VALUE}"}))
    model.follow(calls("bad___secret"), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert "SERVER_TOKEN" in get_result(model)
    assert "PATH" in get_result(model)
    assert "SOMETHING_ELSE" not in get_result(model)
    log = workspace.folder / "runs" / workspace.run_ids()[-1] / "mcp" / "bad.log"
    assert "my token is" in log.read_text(encoding="utf-8")
    written = [path.read_bytes() for path in workspace.folder.rglob("runs/**/*") if path.is_file()]
    assert not any(secret.encode() in data for data in written)
    assert secret not in json.dumps(model.received)


def test_a_missing_variable_stops_the_run_before_the_first_request(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("MY_VALUE", "here")
    accept(workspace, bad=use_hostile(env={"SERVER_TOKEN": "${MY_VALUE}"}))
    monkeypatch.delenv("MY_VALUE")

    assert workspace.agent(*RUN) == 2

    assert "MCP server 'bad' needs the variable 'MY_VALUE', which is not set" in capsys.readouterr().err
    assert model.received == []


def test_a_read_only_hint_is_accepted_only_from_trusted_servers(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    accept(workspace, bad=use_hostile())
    explain = ("policy", "explain", "bad/count", "--json")
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    capsys.readouterr()

    assert workspace.agent(*explain) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ask"
    guarded = {**QUICK, "profile": "guarded"}
    workspace.configure(model=use_model(model), runtime=guarded, mcp={"trusted_servers": ["bad"]})
    assert workspace.agent(*explain) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "allow"
    model.follow(calls("bad___count", text="x"), says("Done."))
    assert workspace.agent(*RUN) == 0
    assert "counted x" in get_result(model)


def test_rules_and_the_access_file_refer_to_servers_by_name(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, bad=use_hostile())
    rules = "tool_approvals:\n  rules:\n    - {tool: bad/*, verdict: deny, reason: not today}\n"
    (workspace.folder / ".agent/policy.yaml").write_text(rules)
    (workspace.folder / ".agent/tool-access.json").write_text('{"tools": {"bad/die": {"enabled": false}}}')
    model.follow(calls("bad___count"), says("Done."))

    assert workspace.agent(*RUN) in (0, 5)

    assert "bad___die" not in get_offered(model)
    assert "not today" in get_result(model)
    assert count_lines(workspace, "starts.txt") == 0


def test_servers_missing_from_the_settings_are_disabled(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    accept(workspace, bad=use_hostile())
    configure(workspace, model, servers="none")
    model.follow(says("Done."))
    capsys.readouterr()

    assert workspace.agent(*RUN) == 0
    assert workspace.agent("mcp", "list", "--json") == 0

    assert "bad___count" not in get_offered(model)
    assert [row["state"] for row in json.loads(capsys.readouterr().out.partition("\n")[2])] == ["off"]


def test_the_list_shows_every_tool_and_the_claims_of_its_server(workspace: Workspace, capsys: Capture) -> None:
    accept(workspace, bad=use_hostile())
    capsys.readouterr()

    assert workspace.agent("mcp", "list", "--json") == 0

    (row,) = json.loads(capsys.readouterr().out)
    tools = {tool["name"]: (tool["effect"], tool["risk"]) for tool in row["tools"]}
    assert row["state"] == "ok"
    assert tools["bad/count"] == ("read", "low")
    assert tools["bad/die"] == ("opaque", "high")
    assert len(row["refused"]) == 2
    assert "bad/bad name!" not in tools
    assert "bad/bad_schema" not in tools
    assert workspace.agent("mcp", "forget", "bad") == 0
    assert workspace.agent("mcp", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "not accepted"
