"""Files that programs execute or obey automatically need approval despite broad allow rules."""

import pytest
from verdicts import judge, read_scope

from metier.context.decoder import build_step
from metier.engine.state.steps import build_memory_key

RUNNING = [
    ".gitattributes", "sub/.gitattributes", ".gitmodules", ".ripgreprc", "conftest.py", "tests/conftest.py",
    "sitecustomize.py", "usercustomize.py", ".pythonrc", ".pdbrc", ".gdbinit", ".lldbinit", ".bashrc", ".bash_profile",
    ".zshenv", ".profile", ".vimrc", ".exrc", ".inputrc", ".pre-commit-config.yaml", "lefthook.yml", ".curlrc",
    ".vscode/tasks.json", ".vscode/settings.json", ".cargo/config.toml", ".pnpmfile.cjs",
    "CONFTEST.py", ".GitAttributes", ".venv/lib/python3.12/site-packages/x.pth",
]  # fmt: skip
OPEN = ["a.py", "src/conftest_notes.md", "tests/test_a.py", "tasks.json", "Makefile", "package.json", "gitattributes"]
BROAD = "rules:\n  - {tool: Write, allow: true}\n  - {tool: Edit, allow: true}\n"
FOLDER = "rules:\n  - {tool: Write, allow: true, when: {path: {startsWith: .}}}\n"


@pytest.mark.parametrize("profile", ["guarded", "strict"])
@pytest.mark.parametrize("path", RUNNING)
def test_a_broad_allow_rule_does_not_cover_an_auto_executed_file(path: str, profile: str) -> None:
    for rules, tool in ((BROAD, "Write"), (BROAD, "Edit"), (FOLDER, "Write")):
        verdict = judge(
            [read_scope(rules)], tool, {"path": path}, profile="strict" if profile == "strict" else "guarded"
        )
        assert verdict.verdict.decision == "ask"
        assert "only a rule that names it can allow it" in verdict.verdict.reason


@pytest.mark.parametrize("path", OPEN)
def test_a_broad_allow_rule_covers_other_files(path: str) -> None:
    assert judge([read_scope(BROAD)], "Write", {"path": path}).verdict.decision == "allow"


@pytest.mark.parametrize(
    "matcher", ["equals: tests/conftest.py", "in: [a, tests/conftest.py]", "matches: '.*/conftest.py'"]
)
def test_a_rule_that_names_the_file_allows_it(matcher: str) -> None:
    scope = read_scope(f"rules:\n  - {{tool: Write, allow: true, when: {{path: {{{matcher}}}}}}}\n")

    assert judge([scope], "Write", {"path": "tests/conftest.py"}).verdict.decision == "allow"


def test_permissive_profile_does_not_ask() -> None:
    assert judge([], "Write", {"path": "conftest.py"}, profile="permissive").verdict.decision == "allow"


def test_always_in_this_run_does_not_cover_an_auto_executed_file() -> None:
    keys = [
        build_memory_key(build_step("Write", {"path": path}, call_id="")) for path in ("a.py", "b.py", "conftest.py")
    ]

    assert keys[0] == keys[1] != keys[2]
