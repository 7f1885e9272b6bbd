"""`agent task`: list, show, validate and run definitions from the command line, without a model."""

import json
import socket

import pytest
from run_workspace import Workspace

pytestmark = pytest.mark.slow

FIRST = """\
---
name: Count
description: Count the words, then tell.
skills: [counter]
inputs:
  - name: text
    description: What to count
  - name: size
    default: "1.10"
    schema: {type: number}
tool_approvals:
  rules:
    - {tool: script_run, allow: true}
next: tell.md
---

Count the words of: {{inputs.text}}
"""
SECOND = """\
---
name: Tell
skills: [counter]
---

Tell {{inputs.size}}: {{steps.TASK.result}}
"""
SKILL = """\
---
name: counter
description: Counts words.
entrypoint:
  script: count
  args: ["{task}"]
---

# Counter
"""
COUNT = """\
import json, sys
from pathlib import Path
if Path("broken").exists():
    sys.exit("it is broken")
print(json.dumps({"summary": f"{len(sys.argv[1].split())} words"}))
"""


@pytest.fixture
def pack(workspace: Workspace) -> Workspace:
    files = {
        ".agent/tasks/count/TASK.md": FIRST,
        ".agent/tasks/count/tell.md": SECOND,
        ".agent/skills/counter/SKILL.md": SKILL,
        ".agent/skills/counter/scripts/count.py": COUNT,
    }
    for name, text in files.items():
        file = workspace.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    workspace.configure(model={"provider": "offline"}, runtime={"on_step_failure": "abort"})
    return workspace


def test_task_runs_offline_end_to_end(pack: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.agent("task", "run", "count", "--input", "text=one two three", "--json") == 0

    outcome = json.loads(capsys.readouterr().out)
    assert outcome["status"] == "completed"
    assert "words" in outcome["result"]
    assert [(step["file"], step["state"]) for step in outcome["task_steps"]] == [
        ("TASK.md", "succeeded"),
        ("tell.md", "succeeded"),
    ]
    assert [child["status"] for child in outcome["children"]] == ["completed", "completed"]


def test_inputs_from_a_file_and_the_command_line_stay_strings(
    pack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    (pack.folder / "inputs.json").write_text('{"text": "from the file", "size": 2.5}', encoding="utf-8")

    assert pack.agent("task", "run", "count", "--input-file", "inputs.json", "--input", "size=1.50", "-q") == 0
    assert pack.agent("runs", "show", "latest") == 0

    out = capsys.readouterr().out
    assert "input:   text = from the file" in out
    assert "input:   size = 1.50" in out
    assert "step:    tell.md  succeeded  Tell" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Task 'count' cannot be run: input 'text' is missing (What to count)"),
        (["--input", "text=x", "--input", "size=big"], "input 'size': 'big' is not of type 'number'"),
        (["--input", "text=x", "--input", "siez=1"], "there is no input 'siez'"),
        (["--input", "text"], "Input 'text' is not name=value"),
        (["--input-file", "none.json"], "The input file 'none.json' cannot be read"),
        (["--input", "text=x", "--timeout", "nan"], "--timeout must be greater than 0, not nan"),
    ],
)
def test_invalid_input_is_a_usage_error_and_starts_nothing(
    arguments: list[str], sentence: str, pack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pack.agent("task", "run", "count", *arguments) == 2

    assert sentence in capsys.readouterr().err
    assert pack.run_ids() == []


def test_failed_step_is_reported_and_resume_starts_there(pack: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    task = pack.folder / ".agent/tasks/count/tell.md"
    task.write_text(task.read_text().replace("name: Tell\n", "name: Tell\nacceptance:\n  - file: told.txt\n"))

    assert pack.agent("task", "run", "count", "--input", "text=a b") == 1
    err = capsys.readouterr().err
    (pack.folder / "told.txt").write_text("told")
    assert pack.agent("resume", "latest", "-q") == 0

    assert "step:    TASK.md  succeeded" in err
    assert "step:    tell.md  failed" in err
    assert "failed:  Step 'tell.md' failed: The result was not accepted" in err
    assert "next:    agent resume" in err


def test_the_cause_of_a_script_failure_is_printed(pack: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hunter2" + "secretvalue99"
    pack.write(
        ".agent/skills/counter/scripts/count.py",
        "import sys\n"
        "for number in range(60): print('warming up', number, file=sys.stderr)\n"
        f"print('password={secret} \\x1b[31mred', file=sys.stderr)\n"
        "print('ValueError: the ledger has no column ' + 'x' * 260, file=sys.stderr)\n"
        "sys.exit(3)\n",
    )

    assert pack.agent("task", "run", "count", "--input", "text=a b", "--json", "--events") == 1
    done = capsys.readouterr()
    assert pack.agent("runs", "show", "latest") == 0
    shown = capsys.readouterr().out

    (executed,) = [line for line in done.err.splitlines() if "skill_step_executed" in line and "script_run" in line]
    assert "exit code 3 | … | password=***REDACTED*** red | ValueError: the ledger" in executed
    for text in (done.err, shown):
        lines = text.splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("failed:  Step 'TASK.md' failed"))
        why = lines[start + 1 : start + 7]
        assert why[4] == "why:     password=***REDACTED*** red"
        assert why[5].startswith("why:     ValueError: the ledger has no column xxx")
        assert len(why[5]) < 260
        assert secret not in text
        assert "\x1b" not in text
    assert json.loads(done.out)["cause"].splitlines()[-1].startswith("ValueError: the ledger")


def test_run_paused_by_a_step_prints_the_reason_and_has_its_exit_code(
    pack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    task = pack.folder / ".agent/tasks/count/TASK.md"
    task.write_text(task.read_text().replace("allow: true", "verdict: ask"))

    assert pack.agent("task", "run", "count", "--input", "text=a b", "--json", "-q") == 3
    outcome = json.loads(capsys.readouterr().out)
    (approval,) = outcome["approvals"]
    assert outcome["status"] == "delegating"
    assert outcome["waits_for"] == outcome["children"][0]["run_id"]
    assert pack.agent("runs", "show", outcome["run_id"]) == 0
    shown = capsys.readouterr().out
    assert f"waiting: for run {outcome['waits_for']}" in shown
    assert f"next:    agent approve {approval['approval_id']}" in shown
    assert pack.agent("approvals", "approve", approval["approval_id"]) == 0
    assert f"next:    agent resume {outcome['run_id']}" in capsys.readouterr().err

    assert pack.agent("resume", outcome["run_id"], "-q") == 3


def test_tasks_are_listed_shown_and_checked(pack: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.agent("task", "list") == 0
    assert "count  2 steps  Count the words, then tell." in capsys.readouterr().out
    assert pack.agent("task", "show", "count") == 0
    shown = capsys.readouterr().out
    assert "input:   text  required  What to count" in shown
    assert "step:    2. tell.md  Tell" in shown
    assert pack.agent("task", "show", "count", "--json") == 0
    assert [step["file"] for step in json.loads(capsys.readouterr().out)["steps"]] == ["TASK.md", "tell.md"]
    assert pack.agent("task", "validate") == 0
    assert pack.agent("task", "validate", "cuont") == 2
    assert "No task is called 'cuont'" in capsys.readouterr().err


def test_every_problem_of_a_task_is_reported_with_its_position(
    pack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "---\nname: Tell\nagent: nobody\nskills: [countr]\noutput_schema: {type: thing}\n---\n\n{{inputs.x}}\n"
    (pack.folder / ".agent/tasks/count/tell.md").write_text(wrong)

    assert pack.agent("task", "validate", "count", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)

    assert [(problem["line"], problem["code"]) for problem in found["problems"]] == [
        (8, "unknown_input"),
        (3, "unknown_agent"),
        (4, "unknown_skill"),
        (5, "schema"),
    ]


def test_invalid_tools_rules_and_scope_of_steps_prevent_a_task_run(
    pack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack.folder / ".agent/tasks/count"
    rules = "tool_approvals:\n  rules:\n    - {tool: Writ, allow: true}\n    - {tool: Write, allow: false}\n"
    (folder / "tell.md").write_text(
        f"---\nname: Tell\ntools: [Raed, Write]\n{rules}acceptance:\n  - command: make\n---\n\nTell.\n"
    )
    (folder / "left.md").write_text("---\nname: Left over\n---\n")

    assert pack.agent("task", "validate", "Count", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert pack.agent("task", "run", "count", "--input", "text=a") == 2

    assert [
        (problem["file"].rpartition("/")[2], problem["line"], problem["code"]) for problem in found["problems"]
    ] == [
        ("TASK.md", 1, "unused_input"),
        ("tell.md", 3, "unknown_tool"),
        ("tell.md", 6, "unknown_tool"),
        ("tell.md", 3, "tool_denied"),
        ("tell.md", 9, "command_not_allowed"),
        ("left.md", 1, "step_unreached"),
    ]
    assert "error: Task 'count' cannot be used" in capsys.readouterr().err
    assert pack.run_ids() == []


def test_steps_without_an_agent_are_checked_against_the_selected_one(
    pack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = "tool_approvals: {rules: [{tool: Write, allow: false}]}"
    pack.write(".agent/agents/clerk/AGENT.md", f"---\nname: Clerk\n{rules}\n---\n\nYou are the clerk.\n")
    pack.write(".agent/agents/builder/AGENT.md", "---\nname: Builder\n---\n\nYou are the builder.\n")
    pack.write(".agent/tasks/count/tell.md", SECOND.replace("name: Tell\n", "name: Tell\ntools: [inherit, Write]\n"))
    told = ("task", "run", "count", "--input", "text=a b", "-q")

    pack.configure(model={"provider": "offline"}, runtime={"agent": "clerk"})
    by_clerk, by_builder = pack.agent(*told), pack.agent(*told, "--agent", "builder")
    pack.configure(model={"provider": "offline"}, runtime={"agent": "builder"})
    by_clerk_again = pack.agent(*told, "--agent", "clerk")

    assert (by_clerk, by_builder, by_clerk_again) == (2, 0, 2)
    assert "Tool 'Write' is denied by the rules of agent 'clerk'" in capsys.readouterr().err


def test_steps_without_an_agent_use_the_selected_or_default_one(
    pack: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("clerk", "other"):
        pack.write(f".agent/agents/{name}/AGENT.md", f"---\nname: {name}\n---\n\nYou are the {name}.\n")
    pack.configure(model={"provider": "offline"}, runtime={"agent": "clerk"})
    told = ("task", "run", "count", "--input", "text=a b", "--json", "-q")

    assert pack.agent(*told) == 0
    default = json.loads(capsys.readouterr().out)
    assert pack.agent(*told, "--agent", "other") == 0
    named = json.loads(capsys.readouterr().out)
    assert pack.agent(*told, "--agent", "nobody") == 2

    assert [child["agent"] for child in default["children"]] == ["clerk", "clerk"]
    assert [child["agent"] for child in named["children"]] == ["other", "other"]
    assert "No agent is called 'nobody'" in capsys.readouterr().err


def test_task_that_stops_at_a_step_ends_with_the_code_of_the_step(
    pack: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        monkeypatch.setenv("AGENT_RUNTIME_MAX_LLM_RETRIES", "0")

        told = ("--provider", "openai", "--model", "m", "-q")
        assert pack.agent("task", "run", "count", "--input", "text=a b", *told) == 8

    assert "failed:  Step 'TASK.md' failed: The connection to openai at 127.0.0.1:" in capsys.readouterr().err
    assert pack.agent("runs", "watch", "latest") == 8
