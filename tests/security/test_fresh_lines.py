"""Lines of a hostile model under a rule that allows `Bash`: each does more than read in the workspace."""

import json
from pathlib import Path

import pytest
from workspaces import put

from metier.cli.main import run

LINES = Path(__file__).with_name("fresh_lines.txt").read_text(encoding="utf-8").splitlines()


def test_none_of_the_attack_lines_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {
        ".agent/policy.yaml": "tool_approvals: [{tool: Bash, allow: true}]\n",
        "agent.yaml": "runtime: {profile: guarded}\n",
        "a.txt": "x", "src/m.py": "x", "sub/.git/HEAD": "ref: refs/heads/main\n",
    })  # fmt: skip
    (tmp_path / "out").symlink_to(tmp_path.parent)
    (tmp_path / "lnk.txt").symlink_to("/etc/passwd")
    monkeypatch.chdir(tmp_path)
    calls = [json.dumps({"tool": "Bash", "args": {"command": line}}) for line in LINES]
    (tmp_path / "calls.jsonl").write_text("\n".join(calls), encoding="utf-8")

    assert run(["policy", "explain", "--batch", "calls.jsonl"]) == 0

    said = [json.loads(answer)["verdict"] for answer in capsys.readouterr().out.splitlines()]
    assert len(LINES) >= 300
    assert [line for line, verdict in zip(LINES, said, strict=True) if verdict == "allow"] == []
