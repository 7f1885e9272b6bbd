"""Check the README's length, comparison and demo. `test_pages.py` follows the rest of it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import read_blocks
from walkthrough import Reader, find_commands, matches

from metier.version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COMPARISON = ROOT / "docs/compare.md"


def test_readme_is_short() -> None:
    assert README.read_text("utf-8").count("\n") <= 130


def test_comparison_figures_come_from_one_benchmark_run_and_name_the_versions() -> None:
    """`bench/run --record peers` keeps the rows."""
    text = COMPARISON.read_text("utf-8")
    rows: dict[str, str] = json.loads((ROOT / "bench/recorded/peers.json").read_text("utf-8"))["rows"]
    shown = {name: value for name, value in rows.items() if ": " in name and not name.startswith("A durable turn")}
    figures = re.findall(r"[\d.]+ ms|\d+ packages, \d+ MB", text)

    assert len(shown) == 4
    assert sorted(figures) == sorted(shown.values())
    assert all(name.partition(":")[0] in text for name in shown)
    assert f"Metier {__version__}: base install" in shown


@pytest.mark.slow
def test_demo_kills_resumes_and_replays_as_the_readme_shows(tmp_path: Path) -> None:
    block = next(each for each in read_blocks(README) if "$ ./dev demo" in each.text)
    (_, shown, _), *_ = find_commands(block)
    cache = tmp_path / "my cache"
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache), "PYTHONIOENCODING": "utf-8"}

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/demo.py"], capture_output=True, text=True, env=environment, check=False
    )

    assert done.returncode == 0, done.stderr
    assert [line for line in shown if not matches(line, done.stdout, Reader(tmp_path, tmp_path))] == []
    folder = next(line for line in done.stdout.splitlines() if line.startswith("  cd "))
    assert shlex.split(folder) == ["cd", str(cache / "metier" / "demo")]
