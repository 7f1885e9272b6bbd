"""Hooks: user commands at defined points of a run. They restrict, are recorded, and don't run in a replay."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from agent_files import add_agent
from cloned_folder import fill, git
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

ALLOWED = ("tool_approvals:", "  rules:", "    - {tool: delegate, allow: true}", "    - {tool: Write, allow: true}")

type Capture = pytest.CaptureFixture[str]

GUARD = """import json, sys
call = json.load(sys.stdin)
with open("hook.log", "a") as log:
    log.write(json.dumps(call) + "\\n")
if "secret" in str(call.get("tool_input")):
    print("No secrets, please", file=sys.stderr)
    sys.exit(2)
"""


def hook(command: str, **more: object) -> dict[str, object]:
    return {"type": "command", "command": command, **more}


def answer(**said: object) -> dict[str, object]:
    """Return a hook that prints this."""
    return hook(f"cat > /dev/null; echo '{json.dumps(said)}'")


def use_hooks(workspace: Workspace, model: ModelServer, **events: object) -> None:
    workspace.configure(model=use_model(model), hooks=events)


def ran(workspace: Workspace) -> list[dict[str, Any]]:
    return [event["payload"] for event in workspace.events() if event["event_type"] == "hooks_ran"]


def tool_results(model: ModelServer, request: int = -1) -> list[str]:
    return [message["content"] for message in model.received[request]["messages"] if message["role"] == "tool"]


def test_hook_denies_a_call_with_exit_code_2_and_the_model_reads_why(workspace: Workspace, model: ModelServer) -> None:
    workspace.write("guard.py", GUARD)
    use_hooks(workspace, model, PreToolUse=[{"matcher": "Write|Edit", "hooks": [hook("python3 guard.py")]}])
    model.follow(
        calls("Write", path="a.txt", content="my secret"), calls("Write", path="b.txt", content="fine"), says("Done")
    )

    assert workspace.agent("run", "-q", "Write") == 0

    assert not (workspace.folder / "a.txt").exists()
    assert (workspace.folder / "b.txt").read_text() == "fine"
    assert "No secrets, please" in tool_results(model, 1)[0]
    seen = [json.loads(line) for line in (workspace.folder / "hook.log").read_text().splitlines()]
    assert seen[0]["hook_event_name"] == "PreToolUse"
    assert seen[0]["tool_name"] == "Write"
    assert seen[0]["tool_input"]["file_path"] == str(workspace.folder / "a.txt")
    assert Path(seen[0]["transcript_path"]).name == "events.jsonl"
    assert seen[0]["cwd"] == str(workspace.folder)


def test_hook_cannot_allow_what_the_policy_denies(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/policy.yaml", "rules:\n  - tool: Write\n    allow: false\n")
    allow = {"hookEventName": "PreToolUse", "permissionDecision": "allow"}
    use_hooks(workspace, model, PreToolUse=[{"hooks": [answer(hookSpecificOutput=allow)]}])
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "-q", "--profile", "guarded", "Write") == 0

    assert not (workspace.folder / "a.txt").exists()
    assert "denies this call" in tool_results(model)[0]


def test_hook_that_allows_does_not_replace_an_approval(workspace: Workspace, model: ModelServer) -> None:
    allow = {"hookEventName": "PreToolUse", "permissionDecision": "allow"}
    both = {
        "PreToolUse": [{"hooks": [answer(hookSpecificOutput=allow)]}],
        "PermissionRequest": [
            {"hooks": [answer(hookSpecificOutput={"decision": {"behavior": "allow"}})]},
        ],
    }
    use_hooks(workspace, model, **both)
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "-q", "--profile", "guarded", "Write") == 3

    assert not (workspace.folder / "a.txt").exists()
    assert [event["hook_event"] for event in ran(workspace)] == ["PreToolUse", "PermissionRequest"]


def test_hook_asks_and_the_approved_call_is_made_once(workspace: Workspace, model: ModelServer) -> None:
    ask = {"permissionDecision": "ask", "permissionDecisionReason": "Is this wise?"}
    use_hooks(workspace, model, PreToolUse=[{"matcher": "Write", "hooks": [answer(hookSpecificOutput=ask)]}])
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "-q", "Write") == 3
    asked = next(event for event in workspace.events() if event["event_type"] == "approval_requested")
    assert asked["payload"]["rule"] == "Is this wise?"
    assert workspace.agent("approvals", "approve", asked["payload"]["approval_id"]) == 0
    assert workspace.agent("resume", "latest", "-q") == 0

    assert (workspace.folder / "a.txt").read_text() == "x"
    assert [event["hook_event"] for event in ran(workspace)] == ["PreToolUse"]


def test_hook_edits_a_call_and_the_edited_call_is_evaluated_again(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(
        ".agent/policy.yaml", "rules:\n  - tool: Write\n    when: {path: {startsWith: closed/}}\n    allow: false\n"
    )
    workspace.write(
        "edit.py",
        "import json, sys\ncall = json.load(sys.stdin)\nchanged = dict(call['tool_input'])\n"
        "changed['file_path'] = changed['file_path'].replace('/open/', '/closed/').replace('raw.txt', 'neat.txt')\n"
        "print(json.dumps({'hookSpecificOutput': {'updatedInput': changed}}))\n",
    )
    use_hooks(workspace, model, PreToolUse=[{"matcher": "Write", "hooks": [hook("python3 edit.py")]}])
    model.follow(
        calls("Write", path="raw.txt", content="1"), calls("Write", path="open/x.txt", content="2"), says("Done")
    )

    workspace.agent("run", "-q", "Write")

    assert (workspace.folder / "neat.txt").read_text() == "1"
    assert not (workspace.folder / "raw.txt").exists()
    assert "A hook changed this call" in tool_results(model, 1)[0]
    assert not (workspace.folder / "closed").exists()
    assert not (workspace.folder / "open").exists()


def test_context_added_by_hooks_reaches_the_model(workspace: Workspace, model: ModelServer) -> None:
    use_hooks(
        workspace,
        model,
        SessionStart=[{"hooks": [hook("echo The build is green")]}],
        UserPromptSubmit=[{"hooks": [answer(hookSpecificOutput={"additionalContext": "Ticket 12 is open"})]}],
        PostToolUse=[{"matcher": "Write", "hooks": [answer(decision="block", reason="Run the formatter")]}],
        PostToolUseFailure=[{"hooks": [answer(additionalContext="Try another path")]}],
    )
    model.follow(calls("Write", path="a.txt", content="x"), calls("Read", path="none.txt"), says("Done"))

    assert workspace.agent("run", "-q", "Write") == 0

    first = json.dumps(model.received[0]["messages"])
    assert "The build is green" in first
    assert "Ticket 12 is open" in first
    assert "Run the formatter" in tool_results(model, 1)[0]
    assert "Try another path" in tool_results(model, 2)[1]


def test_prompt_that_a_hook_blocks_is_not_sent(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    use_hooks(workspace, model, UserPromptSubmit=[{"hooks": [hook("echo Not on a Friday >&2; exit 2")]}])
    model.follow(says("Done"))

    assert workspace.agent("run", "Deploy") == 5

    assert model.received == []
    assert "Not on a Friday" in capsys.readouterr().err


def test_stop_hook_gives_the_model_more_turns_until_it_allows_the_end(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(
        "stop.py",
        "import json, os, sys\nsaid = json.load(sys.stdin)\n"
        "if not os.path.exists('tests-ran'):\n"
        "    print(json.dumps({'decision': 'block', 'reason': 'Run the tests first'}))\n"
        "open('stops', 'a').write(str(said['stop_hook_active']) + ' ')\n",
    )
    use_hooks(workspace, model, Stop=[{"hooks": [hook("python3 stop.py")]}])
    model.follow(says("Finished"), calls("Bash", command="touch tests-ran"), says("Now it is"))

    assert workspace.agent("run", "-q", "Work") == 0

    assert (workspace.folder / "stops").read_text() == "False True "
    assert "Run the tests first" in json.dumps(model.received[1]["messages"])


def test_hook_that_says_continue_false_ends_the_run(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    stop = {"continue": False, "stopReason": "Enough for today"}
    use_hooks(workspace, model, PostToolUse=[{"hooks": [answer(**stop)]}])
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "Write") == 5

    assert "Enough for today" in capsys.readouterr().err
    assert len(model.received) == 1


def test_notification_hook_runs_once_per_question(workspace: Workspace, model: ModelServer) -> None:
    use_hooks(workspace, model, Notification=[{"hooks": [hook("cat >> notes.jsonl; echo >> notes.jsonl")]}])
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "-q", "--profile", "guarded", "Write") == 3
    assert workspace.agent("resume", "latest", "-q") == 3

    (line,) = (workspace.folder / "notes.jsonl").read_text().splitlines()
    assert json.loads(line)["notification_type"] == "permission_prompt"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("sleep 600", "did not end within"),
        ("kill -SEGV $$", "signal 11"),
        ("head -c 100000000 /dev/zero", "more than is read"),
        ("exit 3", "exit code 3"),
        ("/nowhere/at/all", "exit code 127"),
        ("echo '{broken'", "is invalid"),
    ],
)
def test_hook_that_hangs_crashes_or_floods_is_a_recorded_failure(
    workspace: Workspace, model: ModelServer, command: str, status: str, capsys: Capture
) -> None:
    use_hooks(workspace, model, PreToolUse=[{"hooks": [hook(command, timeout=0.3 if "sleep" in command else 60)]}])
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "Write") == 0

    (event,) = ran(workspace)
    assert status in event["failures"][0]
    assert (workspace.folder / "a.txt").read_text() == "x"
    assert "hook" in capsys.readouterr().err


def test_failure_of_a_required_hook_is_a_denial(workspace: Workspace, model: ModelServer) -> None:
    use_hooks(workspace, model, PreToolUse=[{"hooks": [hook("exit 3", required=True)]}])
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    workspace.agent("run", "-q", "Write")

    assert not (workspace.folder / "a.txt").exists()


def test_hook_whose_script_was_changed_by_the_run_denies_without_running(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.write("guard.py", GUARD)
    use_hooks(workspace, model, PreToolUse=[{"matcher": "Write", "hooks": [hook("python3 guard.py")]}])
    model.follow(
        calls("Bash", command='echo \'open("owned", "w")\' > guard.py'),
        calls("Write", path="a.txt", content="my secret"),
        says("Done"),
    )

    workspace.agent("run", "-q", "Write")

    assert not (workspace.folder / "owned").exists()
    assert not (workspace.folder / "a.txt").exists()
    assert "changed since the run began" in tool_results(model)[-1]


def test_replay_of_a_run_with_hooks_is_equal_without_running_them(workspace: Workspace, model: ModelServer) -> None:
    ask = {"permissionDecision": "ask"}
    changed = {"updatedInput": {"path": "b.txt", "content": "2"}, "additionalContext": "mind the gap"}
    mark = hook("echo x >> ran; echo started")
    use_hooks(
        workspace,
        model,
        SessionStart=[{"hooks": [mark]}],
        UserPromptSubmit=[{"hooks": [mark]}],
        PreToolUse=[
            {"matcher": "Write", "hooks": [mark, answer(hookSpecificOutput=changed)]},
            {"matcher": "Edit", "hooks": [mark, answer(hookSpecificOutput=ask)]},
            {"matcher": "Bash", "hooks": [mark, hook("echo never >&2; exit 2")]},
        ],
        PermissionRequest=[{"hooks": [mark]}],
        PostToolUse=[{"hooks": [mark, answer(decision="block", reason="look again")]}],
        PostToolUseFailure=[{"hooks": [mark]}],
        Notification=[{"hooks": [mark]}],
        Stop=[{"hooks": [mark]}],
    )
    model.follow(
        calls("Write", path="a.txt", content="1"),
        calls("Edit", path="b.txt", old="2", new="3"),
        calls("Bash", command="ls"),
        calls("Read", path="none.txt"),
        says("Done"),
    )
    assert workspace.agent("run", "-q", "Write") == 3
    asked = next(event for event in workspace.events() if event["event_type"] == "approval_requested")
    assert workspace.agent("approvals", "approve", asked["payload"]["approval_id"]) == 0
    assert workspace.agent("resume", "latest", "-q") == 0
    assert (workspace.folder / "b.txt").read_text() == "3"
    count = (workspace.folder / "ran").read_text()
    events = {event["hook_event"] for event in ran(workspace)}
    assert events == {
        "SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure",
        "Notification", "Stop",
    }  # fmt: skip

    assert workspace.agent("replay", "latest", "--execute") == 0

    assert (workspace.folder / "ran").read_text() == count


def test_hooks_file_and_claude_settings_are_read(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model))
    workspace.write(
        ".agent/hooks.yaml",
        "import: claude\nPreToolUse:\n  - matcher: Write\n    hooks:\n      - type: command\n"
        "        command: cat > /dev/null; echo own >> ran\n        timeout: 5\n",
    )
    settings = {
        "model": "opus",
        "hooks": {
            "PreToolUse": [{"matcher": "Write", "hooks": [hook('cat > /dev/null; echo "$CLAUDE_PROJECT_DIR" >> ran')]}],
            "SessionEnd": [{"hooks": [hook("echo unknown >> ran")]}],
        },
    }
    workspace.write(".claude/settings.json", json.dumps(settings))
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "-q", "Write") == 0

    assert (workspace.folder / "ran").read_text() == f"own\n{workspace.folder}\n"


def test_hooks_see_no_key_of_the_agent(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "value")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-value")
    use_hooks(workspace, model, PreToolUse=[{"hooks": [hook("env > seen")]}])
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))

    assert workspace.agent("run", "-q", "Write") == 0

    seen = (workspace.folder / "seen").read_text()
    assert "API" not in seen
    assert "CLAUDE_PROJECT_DIR" in seen


def test_hooks_of_a_clone_do_not_run_until_it_is_trusted(
    clone: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    mark = tmp_path / "mark"
    hooks = {"SessionStart": [{"hooks": [hook(f"sh start.sh {mark}")]}]}
    place = fill(
        clone, {".agent/hooks.yaml": json.dumps(hooks), "start.sh": 'echo x >> "$1"\n', "notes.md": "x"}, monkeypatch
    )
    model.follow(says("Done"))

    assert place.agent("run", "-q", "Look") == 0
    assert not mark.exists()
    assert "hooks_withheld" in capsys.readouterr().err

    assert place.agent("trust") == 0
    assert f"SessionStart runs sh start.sh {mark}" in capsys.readouterr().out
    assert place.agent("run", "-q", "--profile", "permissive", "Look") == 0
    assert mark.read_text() == "x\n"

    place.write("start.sh", 'echo changed >> "$1"\n')
    assert place.agent("run", "-q", "--profile", "permissive", "Look") == 0
    assert mark.read_text() == "x\n"
    assert "hooks_withheld" in capsys.readouterr().err


def test_invalid_hooks_are_reported_before_the_first_request(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write(".agent/hooks.yaml", "PreToolUze:\n  - hooks: []\nStop:\n  - hooks:\n      - type: prompt\n")

    assert workspace.agent("run", "Look") == 2

    said = capsys.readouterr().err
    assert "PreToolUze" in said
    assert "PreToolUse" in said
    assert "'prompt'" in said
    assert model.received == []
    use_hooks(workspace, model, Stopp=[])
    assert workspace.agent("run", "Look") == 2
    assert "agent.yaml" in capsys.readouterr().err


def test_child_runs_inherit_the_hooks_of_their_parent(workspace: Workspace, model: ModelServer) -> None:
    add_agent(workspace.folder, "helper", "description: Helps.", *ALLOWED)
    add_agent(workspace.folder, "lead", *ALLOWED)
    note = hook("cat >> seen.jsonl; echo >> seen.jsonl")
    use_hooks(
        workspace,
        model,
        SessionStart=[{"hooks": [note]}],
        PreToolUse=[{"matcher": "Write|Task", "hooks": [note]}],
        SubagentStop=[{"hooks": [note]}],
        Stop=[{"hooks": [note]}],
    )
    model.follow(
        calls("delegate", agent="helper", task="Write it"), calls("Write", path="a.txt", content="x"), says("Written"),
        says("Done"),
    )  # fmt: skip

    assert workspace.agent("run", "-q", "Write", "--agent", "lead", "--profile", "permissive") == 0

    seen = [json.loads(line) for line in (workspace.folder / "seen.jsonl").read_text().splitlines()]
    assert [each["hook_event_name"] for each in seen] == [
        "SessionStart", "PreToolUse", "PreToolUse", "SubagentStop", "Stop",
    ]  # fmt: skip
    assert len({each["run_id"] for each in seen}) == 2


def test_run_without_hooks_reads_and_writes_no_hook_data(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model))
    model.follow(says("Done"))

    assert workspace.agent("run", "-q", "Look") == 0

    assert ran(workspace) == []
    assert not list(Path(os.environ["HOME"]).glob(".claude*"))


def test_hooks_pulled_into_a_trusted_folder_do_not_run(
    clone: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    mark = tmp_path / "mark"
    theirs = {"hooks": {"SessionStart": [{"hooks": [hook(f"echo x >> {mark}")]}]}}
    upstream = fill(clone, {".claude/settings.json": json.dumps(theirs)}, monkeypatch).folder.with_name("upstream")
    own = Workspace(tmp_path / "own")
    own.write(".agent/hooks.yaml", "import: claude\n")
    monkeypatch.chdir(own.folder)
    model.follow(says("Done"))
    assert own.agent("run", "-q", "Look") == 0
    git(own.folder, "init", "-q")
    git(own.folder, "pull", "-q", str(upstream), "main")

    # What a pull brings makes the folder one to be trusted anew, its runs included.
    assert own.agent("run", "-q", "Look") == 2

    assert not mark.exists()
    assert "hooks_withheld" in capsys.readouterr().err
    assert own.agent("trust") == 0
    assert own.agent("run", "-q", "Look", "--profile", "permissive") == 0
    assert mark.read_text() == "x\n"


def test_file_changed_by_a_formatter_hook_is_undone_without_a_conflict(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.write("a.txt", "old\n")
    workspace.write("tidy.sh", "cat > /dev/null; printf 'tidied\\n' >> a.txt\n")
    use_hooks(workspace, model, PostToolUse=[{"matcher": "Write|Edit", "hooks": [hook("sh tidy.sh")]}])
    model.follow(calls("Write", path="a.txt", content="new\n"), says("Done"))
    assert workspace.agent("run", "-q", "Write") == 0
    assert (workspace.folder / "a.txt").read_text() == "new\ntidied\n"

    assert workspace.agent("undo") == 0

    assert (workspace.folder / "a.txt").read_text() == "old\n"
    assert workspace.agent("undo", "--to", "undo-1") == 0
    assert (workspace.folder / "a.txt").read_text() == "new\ntidied\n"
    assert workspace.agent("replay", "latest", "--execute") == 0
