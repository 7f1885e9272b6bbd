"""Read-only lines are allowed by a rule for the shell and run like in bash.

All of them are evaluated and a sixth of them are run; `METIER_LISTS_ALL=1` runs all.
"""

import json
import os
from pathlib import Path

import anyio
import pytest
from benign_lines import BENIGN
from workspaces import Drill, call, put

from metier.cli.main import run
from metier.testing.scripted import ToolCall, calls, says

pytestmark = pytest.mark.anyio

ALLOW = {".agent/policy.yaml": "tool_approvals: [{tool: Bash, allow: true}]\n"}
FILES = {
    "src/a.py": "import os\nx = 1\n",
    "src/b.py": "import sys\n",
    "README.md": "# Title\n\nSome words about a thing, and a few more.\n",
    "data.csv": "name,count\na,1\nb,2\na,1\n",
    "package.json": '{"name": "x"}\n',
}


def test_read_only_lines_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [json.dumps({"tool": "Bash", "args": {"command": line}}) for line in BENIGN]
    put(tmp_path, FILES | ALLOW | {"agent.yaml": "runtime: {profile: guarded}\n", "calls.jsonl": "\n".join(asked)})
    monkeypatch.chdir(tmp_path)

    assert run(["policy", "explain", "--batch", "calls.jsonl"]) == 0

    said = [json.loads(answer)["verdict"] for answer in capsys.readouterr().out.splitlines()]
    assert len(BENIGN) >= 100
    assert [line for line, verdict in zip(BENIGN, said, strict=True) if verdict != "allow"] == []


@pytest.mark.slow
async def test_read_only_lines_run_without_approval(tmp_path: Path) -> None:
    lines = BENIGN if os.environ.get("METIER_LISTS_ALL") else BENIGN[::6]
    put(tmp_path, FILES | ALLOW)
    wanted = calls(*(ToolCall("Bash", {"command": line}) for line in lines))
    drill = Drill(tmp_path, [wanted, says("done")])

    state = await drill.run()

    assert state.status == "completed"
    assert len(drill.told) == len(lines)
    assert not [text for text in drill.told if "Not run" in text or "not_understood" in text]


@pytest.mark.parametrize(
    "line",
    [
        "ls *.md src/*.py",
        "wc -l src/[ab].py",
        "cd src && ls *.py",
        "echo *.nothing",
        "grep -n import --include=*.py -r src",
        "tr a-z A-Z < README.md",
        "cut -d, -f2 < data.csv | sort -n",
        "echo $PWD \"$PWD/x\" '$PWD'",
        'cd src; basename "$PWD"',
        "find src -name '*.py' | xargs wc -c | sort",
        "find . -name 'a b*' | xargs -I{} head -1 {}",
        "awk -F, '{s+=$2} END {print s}' data.csv",
        "sed -n '1,2p' README.md",
        "[ -f README.md ] && echo yes",
        "type -t ls || echo none",
        "echo * .*",
    ],
)
async def test_a_line_produces_the_output_of_bash(line: str, tmp_path: Path) -> None:
    put(tmp_path, FILES | ALLOW | {"a b.txt": "blank\n"})
    drill = Drill(tmp_path, [call("Bash", command=line), says("done")])
    environ = {**os.environ, "LC_ALL": "C"}
    drill.environ = environ

    state = await drill.run()

    with anyio.fail_after(100):
        expected = await anyio.run_process(["/bin/bash", "-c", line], cwd=tmp_path, env=environ, check=False)
    assert state.status == "completed"
    shown = "\n".join(text for text in drill.told[-1].splitlines() if not text.endswith(("/runs", "-home")))
    assert sorted(shown.split()) == sorted(expected.stdout.decode().split())


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("cat *.md", {"link.md": "/etc/passwd"}),
        ("cat < notes", {"notes": "/etc/passwd"}),
        ("wc -l src/*", {"src/x": "/etc"}),
        ("cat $PWD/notes", {"notes": "/etc/passwd"}),
    ],
)
async def test_a_pattern_or_input_outside_the_workspace_is_asked_about(
    line: str, files: dict[str, str], tmp_path: Path
) -> None:
    put(tmp_path, FILES | ALLOW)
    for name, target in files.items():
        (tmp_path / name).symlink_to(target)
    drill = Drill(tmp_path, [call("Bash", command=line), says("done")])

    state = await drill.run()

    assert state.status == "paused"


async def test_a_file_named_like_an_option_is_treated_as_a_file(tmp_path: Path) -> None:
    put(tmp_path, FILES | ALLOW | {"--files0-from=README.md": "", "-rf": "x\n"})
    drill = Drill(tmp_path, [call("Bash", command="wc -l *"), says("done")])

    await drill.run()

    assert "./--files0-from=README.md" in drill.told[0]
    assert "./-rf" in drill.told[0]


async def test_xargs_gets_no_names_that_it_would_split_and_no_links(tmp_path: Path) -> None:
    put(tmp_path, FILES | ALLOW | {"a ..": ""})
    (tmp_path / "secret.md").symlink_to("/etc/passwd")
    put(tmp_path, {"x\n/etc/passwd.md": "torn\n"})
    drill = Drill(tmp_path, [call("Bash", command="find . -name '*.md' | xargs cat"), says("done")])

    state = await drill.run()

    assert state.status == "completed"
    assert "torn" in drill.told[0]
    assert "root:" not in drill.told[0]


async def test_a_deny_rule_for_a_name_applies_to_files_matched_by_a_pattern(tmp_path: Path) -> None:
    rules = (
        "tool_approvals:\n- {tool: Bash, allow: false, when: {command: {contains: plan.txt}}}\n"
        "- {tool: Bash, allow: true}\n"
    )
    put(tmp_path, {"plan.txt": "hush\n", "a.txt": "open\n", ".agent/policy.yaml": rules})
    drill = Drill(tmp_path, [call("Bash", command="cat *.txt"), says("done")])

    await drill.run()

    assert "hush" not in drill.told[0]
    assert "denies" in drill.told[0]
