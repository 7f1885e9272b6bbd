"""Every class of problem of `agent validate`: exact file, line and message, in one table.

A code in the source without a row here fails the last test.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from capability_rows import ROWS as CAPABILITIES
from definition_rows import ROWS as DEFINITIONS
from file_rows import ROWS as FILES
from problem_row import Row
from skill_rows import ROWS as SKILLS

from metier.cli.main import run

ROWS = (*DEFINITIONS, *SKILLS, *CAPABILITIES, *FILES)
SOURCE = Path(__file__).parents[2] / "src" / "metier"
READERS = (
    *sorted((SOURCE / "definitions").rglob("*.py")),
    *(SOURCE / "capabilities" / f"{name}.py" for name in ("contract_reader", "sync_check")),
    SOURCE / "approval" / "scopes.py",
    SOURCE / "approval" / "matchers.py",
    SOURCE / "tools" / "access.py",
    SOURCE / "tools" / "hook_definitions.py",
    SOURCE / "tools" / "mcp" / "servers.py",
    SOURCE / "runtime" / "workspace" / "tasks.py",
    SOURCE / "runtime" / "validation.py",
    SOURCE / "settings" / "layers.py",
)
REPORTERS = (
    "report",
    "deviate",
    "_report",
    "_deviate",
    "_Refused",
    "_without_text",
    "_warning",
    "_error",
    "_refuse",
    "_problem",
    "_warn",
    "fault",
)
CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9*]+)*")
NOT_VALIDATION = {
    "no_skill_file": "`agent skills validate FOLDER` says it; a walk finds files, not folders without one",
    "missing_variable": "said when a server is about to be started: variables belong to the machine",
    "conflict": "for a model: a file that changed while a tool opened it",
    "permission_denied": "for a model: a path that a tool does not open",
    "duplicate_name": "said by `agent skills list`",
    "shadowed_skill": "said by `agent skills list`",
    "unknown_variable": "a variable of the environment, not a file",
    "variable_outvoted": "a variable of the environment, not a file",
}
"""Codes of the same files that other commands report, and why."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_problem_is_reported_with_exact_file_line_and_message(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(work)
    row.write(work)

    code = run(["validate"])

    said = [line.replace(f"{work}/", "") for line in capsys.readouterr().out.splitlines()]
    assert said == list(row.says)
    assert code == int(any(": error: " in line for line in row.says))


def test_every_code_in_the_source_has_a_row() -> None:
    shown = {code for row in ROWS for line in row.says for code in re.findall(r" \[([a-z0-9_]+)\]", line)}
    patterns = {code for file in READERS for code in find_codes(file)} - NOT_VALIDATION.keys()

    missing = [each for each in patterns if not any(re.fullmatch(each.replace("*", "[a-z_]+"), code) for code in shown)]

    assert sorted(missing) == []
    assert len(patterns) > 80, "the search for codes finds too little"


def find_codes(file: Path) -> Iterator[str]:
    """Codes passed to a reporter; `*` for a computed part."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            given += node.args[:2] if name in REPORTERS else []
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            given = node.elts[:1] if _is_sentence(node.elts[1]) else []
        else:
            continue
        yield from (code for each in given if CODE.fullmatch(code := _text(each)) and code not in ("error", "warning"))


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_sentence(node: ast.expr) -> bool:
    """Return whether the string is the message in a pair of code and message."""
    return " " in _text(node) and _text(node)[:1].isupper()
