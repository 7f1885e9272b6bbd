"""Commands of the shell: what rules allow of them, and everything that tries to be more."""

import json
from pathlib import Path

import pytest
from shell_cases import BYPASSES, EVERYDAY, READERS
from verdicts import judge, read_scope

from metier.approval.rules import Decision
from metier.cli.main import run

ATTEMPTS = [(name, command) for name, commands in BYPASSES.items() for command in commands]
ALL_READERS = [{"tool": "Bash", "allow": True, "when": {"command": {"startsWith": prefix}}} for prefix in READERS]
FEW = [
    rule
    for rule in ALL_READERS
    if rule["when"] in [{"command": {"startsWith": p}} for p in ("git status", "ls", "pytest")]
]
KINDS = ["startsWith", "contains", "matches", "nothing"]


def explain_all(commands: list[str], rules: list[dict[str, object]], folder: Path) -> None:
    """Through the door that people have: `agent policy explain --batch`."""
    lines = [json.dumps({"tool": "Bash", "args": {"command": command}, "rules": rules}) for command in commands]
    (folder / "calls.jsonl").write_text("\n".join(lines) + "\n")
    assert run(["policy", "explain", "--batch", str(folder / "calls.jsonl"), "--root", str(folder)]) == 0


def read_verdicts(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["verdict"] for line in capsys.readouterr().out.strip().split("\n")]


def test_there_are_enough_attempts_and_everyday_commands() -> None:
    assert len(ATTEMPTS) >= 300
    assert len({command for _, command in ATTEMPTS}) >= 290
    assert sum(len(commands) for commands in EVERYDAY.values()) >= 120


@pytest.mark.parametrize("rules", [FEW, ALL_READERS], ids=["three rules", "all readers"])
def test_no_bypass_is_allowed_by_rules_for_harmless_commands(
    rules: list[dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explain_all([command for _, command in ATTEMPTS], rules, tmp_path)

    verdicts = read_verdicts(capsys)

    assert len(verdicts) == len(ATTEMPTS)
    assert [case for case, verdict in zip(ATTEMPTS, verdicts, strict=True) if verdict == "allow"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_bypass_is_allowed_however_the_rule_is_written(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules: list[dict[str, object]] = []
    for prefix in ("git status", "ls", "pytest"):
        operand = f"{prefix}.*" if kind == "matches" else prefix
        when = {} if kind == "nothing" else {"when": {"command": {kind: operand}}}
        rules.append({"tool": "Bash", "allow": True, **when})

    explain_all([command for _, command in ATTEMPTS], rules, tmp_path)

    assert [case for case, verdict in zip(ATTEMPTS, read_verdicts(capsys), strict=True) if verdict == "allow"] == []


@pytest.mark.parametrize("expected", ["allow", "ask"])
def test_everyday_commands_are_judged_as_a_person_expects(
    expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = list(EVERYDAY[expected])

    explain_all(commands, ALL_READERS, tmp_path)

    assert [pair for pair in zip(commands, read_verdicts(capsys), strict=True) if pair[1] != expected] == []
