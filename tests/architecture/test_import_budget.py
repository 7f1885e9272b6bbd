"""Commands load no unneeded heavy package: imports dominate the start-up time."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


ALLOWED: dict[str, frozenset[str]] = {
    "--help": frozenset(),
    "run --help": frozenset(),
    "runs list": frozenset(),
    "runs list --json": frozenset(),
    "approvals list": frozenset(),
    "task list": frozenset(),
    "skills list": frozenset({"metier.events", "packaging", "re2", "tomllib"}),
    "skills route hello": frozenset({"packaging"}),
    "run --provider offline hello": frozenset({"metier.events", "packaging", "re2", "rich.console", "tomllib"}),
}
"""The heavy packages that a command may load."""


@pytest.mark.parametrize(("command", "allowed"), ALLOWED.items(), ids=list(ALLOWED))
def test_command_loads_no_unneeded_heavy_package(command: str, allowed: frozenset[str], tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SOURCE, *command.split()],
        cwd=tmp_path / "work", env=environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert HEAVY & set(json.loads(done.stdout)) <= allowed
