"""`--dry-run`: the same planning, and nothing that leaves the process. Proven by an audit hook in a real process."""

import json
import subprocess
import sys

import pytest
from model_server import ModelServer, says
from run_workspace import Workspace

PLANNING = [
    "run_started", "skill_catalog_loaded", "skill_prefilter_completed",
    "prompt_budget_computed", "prompt_composed", "llm_decision_decoded",
    "step_started", "skill_step_executed", "skill_invocation_started",
    "skill_disclosure_loaded", "skill_disclosure_loaded",
    "prompt_budget_computed", "prompt_composed", "llm_decision_decoded", "skill_invocation_finished", "run_finished",
]  # fmt: skip

WATCHED = """
import sys
seen = []
def hook(event, args):
    if event in {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "subprocess.Popen", "os.exec",
                 "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}:
        seen.append((event, str(args)[:200]))
sys.addaudithook(hook)
from metier.cli.main import run
code = run(sys.argv[1:])
sys.stderr.write("SEEN " + repr(seen) + "\\n")
sys.exit(code)
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


def test_the_audit_hook_would_have_seen_a_live_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))

    done = _watch(workspace, "run", "Greet somebody", "-q")

    assert "socket.connect" in done.stderr


def test_a_dry_run_with_bundled_toolsets_and_no_key_starts_nothing_either(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", "all")

    done = _watch(workspace, "run", "hello", "--dry-run", "--provider", "anthropic", "--model", "claude-sonnet-4-5",
                  "--output-format", "json")  # fmt: skip

    assert done.stderr.splitlines()[-1] == "SEEN []"
    plan = json.loads(done.stdout)["plan"]
    assert plan["not_loaded"] == ["hello-extended"]
    assert plan["predicted"]["request_cost_usd"] > 0


def test_a_guarded_dry_run_tells_what_would_be_asked(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
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
    return subprocess.run(
        [sys.executable, "-c", WATCHED, *args], cwd=workspace.folder, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
