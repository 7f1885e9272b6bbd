"""Scripts with missing requirements: the model gets one sentence with the cause and the fix."""

import json
from typing import Any

import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace

READS = 'import os\nprint(os.environ["TRADING_SECRET"])\n'
NEEDS = "# /// script\n# dependencies = []\n# ///\nimport surely_not_installed_here\n"
ECHO = 'import sys\nprint("text of", sys.argv[1:])\n'
PLAIN = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=1)
print("counted", parser.parse_args().count)
"""
STRICT = "# once had --json\nimport argparse\nargparse.ArgumentParser().parse_args()\nprint('plain')\n"
CHATTY = 'print("x" * 5000)\n'
NAPS = "import time\ntime.sleep(60)\n"
READ_ONLY = "---\nname: {name}\ndescription: Look at things.\n{more}\n---\nLook.\n"


def run_script(skill: str, script: str, **more: object) -> Reply:
    return calls("script_run", skill_name=skill, script_name=script, **more)


def read_results(model: ModelServer) -> list[dict[str, Any]]:
    texts = [str(message["content"]) for message in model.received[-1]["messages"] if message["role"] == "tool"]
    return [json.loads(text[text.index("{") : text.rindex("}") + 1]) for text in texts]


def test_a_variable_not_requested_by_the_skill_is_named(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRADING_SECRET", "opensesame")
    workspace.add_skill("trader", "Trade things.", trade=READS)
    model.follow(run_script("trader", "trade"), says("Done."))

    assert workspace.agent("run", "Trade") == 0

    (result,) = read_results(model)
    assert result["error"] == "permission_denied"
    assert result["message"].startswith("Env var 'TRADING_SECRET' not in allowlist")
    assert "opensesame" not in json.dumps(model.received)


def test_an_unset_variable_is_an_error_of_the_script(workspace: Workspace, model: ModelServer) -> None:
    workspace.add_skill("trader", "Trade things.", trade=READS)
    model.follow(run_script("trader", "trade"), says("Done."))

    assert workspace.agent("run", "Trade") == 0

    assert read_results(model)[0]["error"] == "execution_failed"


def test_a_missing_package_prints_one_message_with_the_line_to_add(workspace: Workspace, model: ModelServer) -> None:
    workspace.add_skill("needy", "Need things.", need=NEEDS)
    model.follow(run_script("needy", "need"), says("Done."))

    assert workspace.agent("run", "Need") == 0

    (result,) = read_results(model)
    assert result["error"] == "execution_failed"
    assert '`# dependencies = ["surely-not-installed-here"]`' in result["message"]
    assert "Traceback" not in result["message"]


def test_a_script_without_json_is_run_without_it_and_answers_with_its_text(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.add_skill("counter", "Count things.", plain=PLAIN, echo=ECHO)
    model.follow(
        run_script("counter", "plain", args=["--count", "3"]), run_script("counter", "echo", args=["a"]), says("Done.")
    )

    assert workspace.agent("run", "Count") == 0

    plain, echo = read_results(model)
    assert (plain["success"], plain["result"]) == (True, "counted 3\n")
    assert "it has no --json" in plain["message"]
    assert echo["result"] == "text of ['a']\n"


def test_cached_help_determines_json_support(workspace: Workspace, model: ModelServer) -> None:
    workspace.add_skill("counter", "Count things.", strict=STRICT)
    model.follow(
        calls("script_help", skill_name="counter", script_name="strict"), run_script("counter", "strict"), says("Done.")
    )

    assert workspace.agent("run", "Count") == 0

    assert read_results(model)[-1]["result"] == "plain\n"


@pytest.mark.parametrize("is_read", [True, False])
def test_a_script_without_json_support_is_retried_only_if_its_skill_has_no_effects(
    workspace: Workspace, model: ModelServer, *, is_read: bool
) -> None:
    folder = workspace.add_skill("counter", "Count things.", strict=STRICT)
    more = "side_effects: {kinds: []}" if is_read else "license: MIT"
    (folder / "SKILL.md").write_text(READ_ONLY.format(name="counter", more=more), encoding="utf-8")
    model.follow(run_script("counter", "strict"), says("Done."))

    assert workspace.agent("run", "Count") == 0

    (result,) = read_results(model)
    assert result["success"] is is_read
    assert "json=false" in result["message"] or is_read


def test_a_skill_can_lower_time_and_output_limits_of_its_scripts(workspace: Workspace, model: ModelServer) -> None:
    limits = {"slow": "timeout_seconds: 1", "chatty": "max_output_bytes: 1000"}
    for name, more in limits.items():
        folder = workspace.add_skill(name, f"Be {name}.", nap=NAPS, chat=CHATTY)
        (folder / "SKILL.md").write_text(READ_ONLY.format(name=name, more=more), encoding="utf-8")
    model.follow(run_script("chatty", "chat", json=False), run_script("slow", "nap"), says("Done."))

    assert workspace.agent("run", "Nap") == 0

    chat, nap = read_results(model)
    assert len(chat["result"]) < 2000
    assert "output of 5001 bytes cut" in chat["message"]
    assert (nap["error"], nap["message"]) == ("timeout", "Script timed out after 1s")


def test_a_skill_cannot_raise_the_limits_of_the_host(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_TIMEOUT", "1")
    folder = workspace.add_skill("slow", "Be slow.", nap=NAPS)
    (folder / "SKILL.md").write_text(READ_ONLY.format(name="slow", more="timeout_seconds: 300"), encoding="utf-8")
    model.follow(run_script("slow", "nap"), says("Done."))

    assert workspace.agent("run", "Nap") == 0

    assert read_results(model)[0]["message"] == "Script timed out after 1s"
