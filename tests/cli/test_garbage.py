"""When a command looks for reference cycles, seen from inside the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import gc, os, sys
sys.argv = ["agent", *sys.argv[1:]]
seen = []
flush = sys.stdout.flush
sys.stdout.flush = lambda: (seen.append((gc.isenabled(), gc.get_freeze_count() > 10_000)), flush())[1]
from metier.cli.main import main
try:
    main()
except SystemExit:
    pass
print(seen[-1], gc.isenabled(), file=sys.stderr)
"""


@pytest.mark.parametrize("words", ["runs list", "run --provider offline hello", "skills list --json"])
def test_a_command_collects_while_it_works_and_not_when_it_ends(words: str, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words.split()], cwd=tmp_path, env=environ, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip

    assert done.stderr.splitlines()[-1] == "(True, True) False"


def test_a_program_that_calls_a_command_keeps_its_own_collection(tmp_path: Path) -> None:
    program = """
import gc
from metier.cli.main import run
before = gc.get_threshold(), gc.get_freeze_count()
run(["run", "--provider", "offline", "--quiet", "hello"])
assert gc.isenabled() and (gc.get_threshold(), gc.get_freeze_count()) == before
"""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, timeout=120, check=True)
