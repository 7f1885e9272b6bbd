"""`--dry-run`: the same plan without external effects, proven by an audit hook in a real process."""

import json
import subprocess
import sys

import pytest
from model_server import ModelServer, says
from run_workspace import Workspace

PLANNING = [
    "run_started", "skill_catalog_loaded", "skill_prefilter_completed", "skill_disclosure_loaded",
    "prompt_budget_computed", "prompt_composed", "llm_decision_decoded",
    "step_started", "skill_step_executed", "skill_invocation_started",
    "skill_disclosure_loaded", "skill_disclosure_loaded",
    "prompt_budget_computed", "prompt_composed", "llm_decision_decoded", "skill_invocation_finished", "run_finished",
]  # fmt: skip

WATCHED = """
import atexit, sys
seen = []
def hook(event, args):
    if event in {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "subprocess.Popen", "os.exec",
                 "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}:
        seen.append((event, str(args)[:200]))
sys.addaudithook(hook)
atexit.register(lambda: sys.stderr.write("SEEN " + repr(seen) + "\\n"))
"""
COMMAND = "from metier.cli.main import main; main()"

TASK = """\
---
name: Notes
agent: clerk
skills: []
inputs:
  - name: topic
tool_approvals:
  rules:
    - {tool: Write, allow: false}
    - {tool: Bash, when: {command: {equals: touch made}}, allow: true}
acceptance:
  - command: touch made
output_schema: {type: object}
next: tell.md
---

Collect about {{inputs.topic}}.
"""
TELL = """\
---
name: Tell
skills: [greeter]
---

Greet somebody with {{steps.TASK.result}}
"""


def test_a_dry_run_opens_no_socket_and_starts_no_process(workspace: Workspace, model: ModelServer) -> None:
    done = _watch(workspace, "run", "Greet somebody", "--dry-run", "true", "--output-format", "json")

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "SEEN []"
    assert model.received == []
    assert workspace.event_types() == PLANNING
    assert workspace.events()[-1]["payload"]["mode"] == "dry_run"
    plan = json.loads(done.stdout)["plan"]
    assert plan["skill"] == "greeter"
    assert plan["predicted"]["input_tokens_per_request"] > 100
    assert {tool["tool"]: tool["verdict"] for tool in plan["tools"]}["script_run"] == "allow"


def test_the_audit_hook_detects_a_live_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))

    done = _watch(workspace, "run", "Greet somebody", "-q")

    assert "socket.connect" in done.stderr


def test_a_dry_run_with_bundled_toolsets_and_no_key_starts_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", "all")

    done = _watch(workspace, "run", "hello", "--dry-run", "--provider", "anthropic", "--model", "claude-sonnet-4-5",
                  "--output-format", "json")  # fmt: skip

    assert done.stderr.splitlines()[-1] == "SEEN []"
    plan = json.loads(done.stdout)["plan"]
    assert plan["not_loaded"] == ["hello-extended"]
    assert plan["predicted"]["request_cost_usd"] > 0


def test_a_guarded_dry_run_lists_the_required_approvals(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workspace.agent("run", "Greet somebody", "--dry-run", "--profile", "guarded") == 0

    out = capsys.readouterr().out
    assert "tool:       script_run  ask  Profile 'guarded' asks" in out
    assert "tool:       script_list  allow" in out
    assert "skill:      greeter" in out


def test_dry_run_false_is_a_live_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet", "--dry-run", "false") == 0

    assert len(model.received) == 1


def _watch(workspace: Workspace, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process with an audit hook from the first import."""
    return subprocess.run(
        [sys.executable, "-c", WATCHED + COMMAND, *args], cwd=workspace.folder, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def test_a_dry_run_of_a_task_plans_every_step_and_starts_nothing(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(
        ".agent/agents/clerk/AGENT.md",
        "---\nname: Clerk\ntools: [Read, Write, Bash, script_run]\n---\n\nYou are the clerk.\n",
    )
    workspace.write(".agent/tasks/notes/TASK.md", TASK)
    workspace.write(".agent/tasks/notes/tell.md", TELL)

    done = _watch(workspace, "task", "run", "notes", "--input", "topic=tides", "--dry-run", "--json")

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "SEEN []"
    assert model.received == []
    outcome = json.loads(done.stdout)
    plan = outcome["plan"]
    assert (outcome["status"], outcome["result"], plan["task"]) == ("completed", "", "notes")
    assert plan["inputs"] == {"topic": "tides"}
    first, second = (step["plan"] for step in plan["steps"])
    assert [step["agent"] for step in plan["steps"]] == ["clerk", "clerk"]
    assert {tool["tool"]: tool["verdict"] for tool in first["tools"]}["Write"] == "deny"
    assert second["skill"] == "greeter"
    assert {tool["tool"]: tool["verdict"] for tool in second["tools"]}["script_run"] == "ask"
    tokens = [step["predicted"]["input_tokens_per_request"] for step in (first, second)]
    assert plan["predicted"]["input_tokens"] == sum(tokens)
    assert min(tokens) > 100
    runs = [outcome["run_id"], *(child["run_id"] for child in outcome["children"])]
    ends = [workspace.events(run)[-1] for run in runs]
    assert [(event["event_type"], event["payload"]["mode"]) for event in ends] == [("run_finished", "dry_run")] * 3
    assert not (workspace.folder / "made").exists()
    assert [workspace.agent("replay", run) for run in runs] == [0, 0, 0]


def test_the_plan_of_a_task_is_printed_as_text_with_a_price(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.write(".agent/tasks/notes/TASK.md", TASK.replace("agent: clerk\n", ""))
    workspace.write(".agent/tasks/notes/tell.md", TELL)

    priced = ("--provider", "anthropic", "--model", "claude-sonnet-4-5")
    assert workspace.agent("task", "run", "notes", "--input", "topic=tides", "--dry-run", "true", *priced) == 0

    out = capsys.readouterr().out
    assert "step:       TASK.md  Notes  by the built-in agent\n  model:      anthropic/claude-sonnet-4-5\n" in out
    assert "\n  tool:       Write  deny  Rule 1 of task 'notes' denies this call\n" in out
    assert "\nstep:       tell.md  Tell  by the built-in agent\n" in out
    assert "\nall steps:  " in out
    assert ", at most $" in out.splitlines()[-1]
