"""Shell commands: what rules allow, and every attempt to exceed it."""

import json
from pathlib import Path

import pytest
from program_runners import PLAIN_COMMANDS, RUNNERS
from shell_cases import BEYOND_LOOKING, BYPASSES, EVERYDAY, READERS
from verdicts import judge, read_scope

from metier.approval.rules import Decision
from metier.cli.main import run

ATTEMPTS = [(name, command) for name, commands in BYPASSES.items() for command in commands]
ALL_READERS: list[dict[str, object]] = [
    {"tool": "Bash", "allow": True, "when": {"command": {"startsWith": prefix}}} for prefix in READERS
]
FEW = [
    {"tool": "Bash", "allow": True, "when": {"command": {"startsWith": name}}}
    for name in ("git status", "ls", "pytest")
]
KINDS = ["startsWith", "contains", "matches", "nothing"]


def explain_all(commands: list[str], rules: list[dict[str, object]], folder: Path) -> None:
    """Evaluate the commands with `agent policy explain --batch`."""
    lines = [json.dumps({"tool": "Bash", "args": {"command": command}, "rules": rules}) for command in commands]
    (folder / "calls.jsonl").write_text("\n".join(lines) + "\n")
    assert run(["policy", "explain", "--batch", str(folder / "calls.jsonl"), "--root", str(folder)]) == 0


def read_verdicts(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["verdict"] for line in capsys.readouterr().out.strip().split("\n")]


def test_the_corpus_has_enough_attempts_and_everyday_commands() -> None:
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
def test_everyday_commands_are_evaluated_as_a_user_expects(
    expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = list(EVERYDAY[expected])

    explain_all(commands, ALL_READERS, tmp_path)

    assert [pair for pair in zip(commands, read_verdicts(capsys), strict=True) if pair[1] != expected] == []


RULES = """
rules:
  - {tool: Bash, allow: false, when: {command: {startsWith: git push}}, reason: People push}
  - {tool: Bash, allow: false, when: {argv: {contains: --force}}}
  - {tool: Bash, allow: true, when: {command: {startsWith: git}}}
  - {tool: Bash, allow: true, when: {command: {in: [make, make test, 'echo "a  b" > x', sh]}}}
  - {tool: Bash, allow: true, when: {command: {startsWith: npm run lint}}}
  - {tool: Bash, allow: true, when: {command: {matches: 'deploy (plan|show)( --env=[a-z]+)?'}}}
  - {tool: Bash, allow: true, when: {command: {startsWith: mytool}}}
  - {tool: Bash, allow: true, when: {command: {startsWith: .venv/bin/pytest}}}
  - {tool: Bash, allow: true, when: {command: {startsWith: git add}}}
  - {tool: Bash, allow: true, when: {command: {startsWith: bash}}}
  - {tool: Bash, allow: true, when: {command: {startsWith: cat}, cwd: {startsWith: docs/}}}
"""

VERDICTS: list[tuple[str, Decision]] = [
    ("git push", "deny"),
    ("/usr/bin/git push origin", "deny"),
    ("git status && git push", "deny"),
    ("git status; /bin/git push", "deny"),
    ("git  push", "deny"),
    ("x=1; git push", "deny"),
    ("echo $(git push)", "deny"),
    ("'git' pu\\sh", "deny"),
    ("git log --force", "deny"),
    ("git status", "allow"),
    ("git add src", "allow"),
    ("git add src && git status", "allow"),
    ("git add ../x", "ask"),
    ("git commit -m x", "ask"),
    ("make", "allow"),
    ("make test", "allow"),
    ("make  'test'", "allow"),
    ("make test install", "ask"),
    ("make test && git status", "allow"),
    ('echo "a  b" > x', "allow"),
    ("echo 'a  b' > x", "ask"),
    ('echo "a  b" > x; git status', "ask"),
    ("npm run lint", "allow"),
    ("npm run lint --fix", "ask"),
    ("npm run lint2", "ask"),
    ("deploy plan", "allow"),
    ("deploy show --env=test", "allow"),
    ("deploy apply", "ask"),
    ("deploy plan; deploy apply", "ask"),
    ("mytool", "allow"),
    ("mytool x", "ask"),
    (".venv/bin/pytest -q", "allow"),
    (".venv/bin/pytest -p evil", "ask"),
    ("./venv/bin/pytest -q", "ask"),
    ("bash", "ask"),
    ("bash x.sh", "ask"),
    ("sh", "allow"),
    ("git show HEAD:evil.sh | sh", "ask"),
    ("git show HEAD:evil.sh | bash", "ask"),
    ("cat a.md", "ask"),
]


@pytest.mark.parametrize(("command", "expected"), VERDICTS)
def test_every_command_of_a_line_must_be_allowed_and_one_denial_denies_the_line(
    command: str, expected: Decision
) -> None:
    assert judge([read_scope(RULES)], "Bash", {"command": command}).verdict.decision == expected


def test_the_working_directory_of_a_command_is_an_argument_like_any_other() -> None:
    scope = read_scope(RULES)

    assert judge([scope], "Bash", {"command": "cat a.md", "cwd": "docs"}).verdict.decision == "allow"
    assert judge([scope], "Bash", {"command": "cat ../a.md", "cwd": "docs"}).verdict.decision == "allow"
    assert judge([scope], "Bash", {"command": "cat ../../a.md", "cwd": "docs"}).verdict.decision == "ask"
    assert judge([scope], "Bash", {"command": "cat a.md", "cwd": "docs/../src"}).verdict.decision == "ask"


def test_the_explanation_shows_the_words_of_each_command_or_the_parse_error() -> None:
    scope = read_scope(RULES)

    line = judge([scope], "Bash", {"command": "git  log -1 'a b'|head"})
    strange = judge([scope], "Bash", {"command": "git log $X"})

    assert line.arguments == {
        "command": "git log -1 'a b' | head",
        "commands": [["git", "log", "-1", "a b"], ["head"]],
    }
    assert strange.arguments == {"command": "git log $X", "not_understood": "an expansion ('$')"}
    assert strange.verdict.reason == (
        "Rule 3 of the host asks about this call: The line contains an expansion ('$'); "
        "only a rule that names the whole line can allow it"
    )


def test_later_rules_apply_if_an_allow_rule_does_not_cover_the_command() -> None:
    scope = read_scope(
        "rules: [{tool: Bash, allow: true, when: {command: {startsWith: git}}},"
        " {tool: Bash, allow: false, when: {command: {contains: reset}}}]"
    )

    assert judge([scope], "Bash", {"command": "git reset --hard"}).verdict.decision == "deny"
    assert judge([scope], "Bash", {"command": "git log --grep=reset"}).verdict.decision == "allow"


def test_commands_may_be_allowed_by_different_scopes() -> None:
    host = read_scope("rules: [{tool: Bash, allow: true, when: {command: {startsWith: ls}}}]")
    agent = read_scope("rules: [{tool: Bash, allow: true, when: {command: {startsWith: cat}}}]", "agent")

    assert judge([host, agent], "Bash", {"command": "ls && cat x"}).verdict.decision == "allow"
    assert judge([host, agent], "Bash", {"command": "ls && cat x && wc x"}).verdict.decision == "ask"


@pytest.mark.parametrize(
    "command",
    ["to\\uch PWNED", "{touch,PWNED}", "/usr/bin/t[o]uch PWNED", "env touch PWNED", "sh -c 'touch PWNED'", "$x PWNED"],
)
def test_a_deny_rule_blocks_unparsable_commands_even_in_the_permissive_profile(command: str) -> None:
    host = read_scope("rules: [{tool: Bash, allow: false, when: {command: {startsWith: touch}}}]")

    assert judge([host], "Bash", {"command": command}, profile="permissive").verdict.decision != "allow"
    assert judge([host], "Bash", {"command": "make"}, profile="permissive").verdict.decision == "ask"
    assert judge([host], "Bash", {"command": "ls -la"}, profile="permissive").verdict.decision == "allow"
    assert judge([], "Bash", {"command": command}, profile="permissive").verdict.decision == "allow"


def test_a_rule_for_the_whole_tool_allows_read_only_commands() -> None:
    scope = read_scope("rules: [{tool: Bash, allow: true}]")

    for command, expected in (
        ("git status | wc -l", "allow"),
        ("pytest", "ask"),
        ("git add x", "ask"),
        ("rm x", "ask"),
    ):
        assert judge([scope], "Bash", {"command": command}).verdict.decision == expected


def test_examples_of_a_rule_are_evaluated_like_shell_commands() -> None:
    scope = read_scope(
        "rules:\n  - tool: Bash\n    allow: true\n    when: {command: {startsWith: git log}}\n"
        "    examples: {allow: [{command: git log -3}], ask: [{command: git log --output=x}, {command: git log; rm x}]}"
    )

    assert len(scope.tools.rules) == 1


def test_a_call_allowed_only_by_the_profile_is_not_attributed_to_a_rule() -> None:
    host = read_scope("rules: [{tool: Bash, allow: true, when: {command: {startsWith: git status}}}]")

    explanation = judge([host], "Bash", {"command": "git status; rm -rf x"}, profile="permissive")

    assert explanation.verdict.decision == "allow"
    assert explanation.winner is None


DENYING = "rules:\n- {tool: Bash, allow: false, when: {command: {startsWith: touch}}}\n"


def test_a_program_that_can_run_a_denied_one_asks_even_if_all_else_is_allowed() -> None:
    scope = read_scope(DENYING)

    allowed = [
        c for c in RUNNERS if judge([scope], "Bash", {"command": c}, profile="permissive").verdict.decision == "allow"
    ]

    assert len({command.split()[0] for command in RUNNERS}) >= 120
    assert allowed == []


def test_a_deny_rule_for_one_program_ignores_programs_that_run_no_others() -> None:
    scope = read_scope(DENYING)

    verdicts = {c: judge([scope], "Bash", {"command": c}, profile="permissive").verdict for c in PLAIN_COMMANDS}

    assert {command: verdict for command, verdict in verdicts.items() if verdict.decision != "allow"} == {}


def test_command_forms_that_do_more_than_read_are_not_covered_by_a_shell_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explain_all(list(BEYOND_LOOKING), [{"tool": "Bash", "allow": True}], tmp_path)

    verdicts = zip(BEYOND_LOOKING, read_verdicts(capsys), strict=True)

    assert [command for command, verdict in verdicts if verdict == "allow"] == []
