"""Calls that cannot run: nobody is asked, the model gets the reason, the log and `explain` agree."""

import json
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from workspaces import Drill, call, put

from metier.cli.main import run
from metier.errors import UsageError
from metier.testing.scripted import ToolCall, calls, says

POLICY = """tool_approvals:
- {tool: Bash, allow: false, when: {command: {startsWith: rm}}, reason: People delete}
- {tool: Bash, allow: true}
- {tool: Write, allow: true, when: {path: {startsWith: out/}}}
- {tool: Write, allow: false, when: {path: {startsWith: locked/}}}
"""
NOT_RUN = ("Not run: ", "Invalid input for ", "There is no tool ")
CANNOT_RUN: dict[str, tuple[str, dict[str, JsonValue]]] = {
    "outside": ("Write", {"path": "../../etc/x", "content": "x"}),
    "outside, absolute": ("Write", {"path": "/etc/x", "content": "x"}),
    "outside, read": ("Read", {"path": "/etc/passwd"}),
    "protected": ("Write", {"path": ".agent/policy.yaml", "content": "x"}),
    "no content": ("Write", {"path": "a.txt"}),
    "wrong type": ("Edit", {"path": 5, "old": "a", "new": "b"}),
    "another argument": ("Read", {"path": "a.txt", "mode": "fast"}),
    "no such tool": ("Wriet", {"path": "a.txt", "content": "x"}),
    "a folder outside": ("Bash", {"command": "npm install", "cwd": "/etc"}),
    "a way out": ("Bash", {"command": "cd / && pwd"}),
    "a way home": ("Bash", {"command": "cd && pwd"}),
    "no command": ("Bash", {"cwd": "."}),
    "an address that is none": ("WebFetch", {"url": "ftp://site.example/"}),
}


def read_events(workspace: Path, run_id: str) -> list[dict[str, Any]]:
    log = workspace / "runs" / run_id / "events.jsonl"
    return [cast("dict[str, Any]", json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.mark.anyio
async def test_a_call_that_cannot_run_is_logged_without_asking_the_user(tmp_path: Path) -> None:
    put(tmp_path, {".agent/policy.yaml": POLICY})
    wanted = [ToolCall(tool, arguments) for tool, arguments in CANNOT_RUN.values()]
    drill = Drill(tmp_path, [calls(*wanted), says("done")])

    state = await drill.run()

    assert state.status == "completed"
    assert await drill.questions() == []
    assert len(drill.told) == len(CANNOT_RUN)
    assert [text for text in drill.told if not text.startswith(NOT_RUN)] == []
    events = read_events(tmp_path, state.run_id)
    refused = [event["payload"] for event in events if event["event_type"] == "call_refused"]
    assert sorted((each["tool"], each["verdict"]) for each in refused) == sorted(
        (tool, "deny") for tool, _ in CANNOT_RUN.values()
    )
    assert all(each["rule"] and each["reason"] and each["arguments"] for each in refused)


@pytest.mark.anyio
async def test_a_denied_call_is_logged_without_secrets(tmp_path: Path) -> None:
    secret = "sk-" + "ant-api03-" + "a1B2c3D4" * 10
    put(tmp_path, {".agent/policy.yaml": POLICY})
    script = [
        calls(ToolCall("Bash", {"command": f"rm -r x {secret}"}), ToolCall("Write", {"path": "b.txt", "content": "x"})),
        says("done"),
    ]
    drill = Drill(tmp_path, script)
    state = await drill.run()
    await drill.decide("denied")

    await Drill(tmp_path, [says("done")]).resume(state.run_id)

    events = read_events(tmp_path, state.run_id)
    by_rule, by_person = [event["payload"] for event in events if event["event_type"] == "call_refused"]
    assert (by_rule["verdict"], by_rule["rule"]) == ("deny", "host rule 1 (.agent/policy.yaml:2)")
    assert "People delete" in str(by_rule["reason"])
    assert (by_person["verdict"], by_person["tool"]) == ("ask", "Write")
    assert secret not in json.dumps(events)


@pytest.mark.anyio
@pytest.mark.parametrize("arguments", [{"path": "/etc/x", "content": "x"}, {"path": "locked/a", "content": "x"}])
async def test_a_call_that_a_user_edited_is_evaluated_again(arguments: dict[str, JsonValue], tmp_path: Path) -> None:
    put(tmp_path, {".agent/policy.yaml": POLICY})
    drill = Drill(tmp_path, [call("Write", path="a.txt", content="x"), says("done")])
    state = await drill.run()

    with pytest.raises(UsageError, match="the call would be denied"):
        await drill.decide("approved", arguments=arguments)

    assert state.pause is not None
    assert len(await drill.questions()) == 1
    assert not (tmp_path / "locked").exists()


WORDS = (
    "a.txt",
    "link/passwd",
    "out/a.txt",
    "locked/x",
    "../x",
    "/etc/passwd",
    ".env",
    ".agent/policy.yaml",
    "",
    "~/x",
)
COMMANDS = ("ls", "rm -rf x", "ls *.py", "sed -i s/a/b/ x", "git push", "cat ../x", "find . | xargs rm", "cd / && ls")
LINKED = ("cat link/passwd", "cat passwd.txt", "wc -l < passwd.txt", "cat *.txt", "cd link && ls", "ls link")
CALLS: list[tuple[str, dict[str, JsonValue]]] = [
    *((tool, {"path": path}) for tool in ("Read", "Edit", "Glob", "Nothing") for path in WORDS),
    *(("Write", {"path": path, "content": "x"}) for path in WORDS),
    *(("Bash", {"command": command, "cwd": cwd}) for command in COMMANDS for cwd in (".", "../x", "/etc")),
    *(("Bash", {"command": command}) for command in LINKED),
    *(("WebFetch", {"url": url}) for url in ("x", "http://u@h/", "ftp://h/")),
]


@pytest.fixture
def explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put(tmp_path, {".agent/policy.yaml": POLICY, "agent.yaml": "runtime: {profile: guarded}\n"})
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "passwd.txt").symlink_to("/etc/passwd")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@given(st.lists(st.sampled_from(CALLS), min_size=3, max_size=3))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_explain_matches_the_behavior_of_a_run(
    explained: Path, capsys: pytest.CaptureFixture[str], wanted: list[tuple[str, dict[str, JsonValue]]]
) -> None:
    lines = [json.dumps({"tool": tool, "args": arguments}) for tool, arguments in wanted]
    (explained / "calls.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    capsys.readouterr()
    assert run(["policy", "explain", "--batch", "calls.jsonl"]) == 0
    said = [json.loads(line)["verdict"] for line in capsys.readouterr().out.strip().splitlines()]

    for (tool, arguments), verdict in zip(wanted, said, strict=True):
        drill = Drill(explained, [calls(ToolCall(tool, arguments)), says("done")])
        state = anyio.run(drill.run)
        is_asked = state.status == "paused"
        is_denied = not is_asked and drill.told[-1].startswith(NOT_RUN)

        assert ("ask" if is_asked else "deny" if is_denied else "allow") == verdict, (tool, arguments)


def test_explain_resolves_links_in_a_command_like_a_run(explained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(explained, {".agent/policy.yaml": "tool_approvals: [{tool: Bash, allow: true}]\n"})
    lines = [json.dumps({"tool": "Bash", "args": {"command": command}}) for command in LINKED]
    (explained / "calls.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    assert run(["policy", "explain", "--batch", "calls.jsonl"]) == 0

    said = [json.loads(line) for line in capsys.readouterr().out.strip().splitlines()]
    assert [each["verdict"] for each in said] == ["ask", "ask", "ask", "ask", "deny", "allow"]
    assert said[0]["reason"].startswith("It leads to 'cat /etc/passwd'. ")
