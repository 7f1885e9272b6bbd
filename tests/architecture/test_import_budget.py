"""What a command may import: a start is mostly imports, and every script that calls `agent` pays them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

HEAVY = frozenset(
    {"celery", "cronsim", "fastapi", "httpx2", "jsonschema", "mcp", "metier.events", "opentelemetry", "packaging",
     "PIL", "prompt_toolkit", "psycopg", "re2", "rich.console", "safetensors", "tokenizers", "tomllib"}
)  # fmt: skip
SOURCE = """
import io, json, sys
out, sys.stdout = sys.stdout, io.StringIO()
from metier.cli.main import run
run(sys.argv[1:])
print(json.dumps(sorted(sys.modules)), file=out)
"""


class Budget(NamedTuple):
    command: str
    modules: int
    """Of Metier, at most."""
    allowed: frozenset[str] = frozenset()
    """Heavy packages that it may load."""


BUDGETS = (
    Budget("--help", 10),
    Budget("run --help", 18),
    Budget("runs list", 155),
    Budget("runs list --json", 155),
    Budget("approvals list", 152),
    Budget("task list", 130),
    Budget("skills list", 313, frozenset({"metier.events", "re2", "tomllib"})),
    Budget("skills route hello", 165),
    Budget("run --provider offline hello", 574, frozenset({"metier.events", "re2", "rich.console", "tomllib"})),
)


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget.command)
def test_a_command_imports_no_more_than_it_needs(budget: Budget, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-c", SOURCE, *budget.command.split()]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path / "work", env=environ, capture_output=True, text=True, timeout=60)

    loaded: list[str] = json.loads(done.stdout)
    own = [name for name in loaded if name.split(".")[0] == "metier"]
    assert len(own) <= budget.modules, len(own)
    assert HEAVY & set(loaded) <= budget.allowed
