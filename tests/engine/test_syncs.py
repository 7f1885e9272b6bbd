"""Syncs of a run, as the kernel counts them: at its start, before its effect, and at its end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 4
ROOT = Path(__file__).parents[2]


def _can_trace() -> bool:
    return (
        shutil.which("strace") is not None
        and subprocess.run(["strace", "-f", "--seccomp-bpf", "-qq", "true"], check=False).returncode == 0
    )


@pytest.mark.skipif(not _can_trace(), reason="strace cannot be used here")
@pytest.mark.slow
def test_a_run_with_one_effect_syncs_for_its_start_its_intent_and_its_end(tmp_path: Path) -> None:
    once, twice = _count(tmp_path / "once", RUNS), _count(tmp_path / "twice", 2 * RUNS)

    # A few more where the write-ahead log happens to be copied into the database meanwhile.
    assert 3 * RUNS <= twice - once <= 6 * RUNS


def _count(folder: Path, runs: int) -> int:
    """Count all syncs of a process that drives this number of consecutive runs."""
    folder.mkdir()
    trace = folder / "trace"
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
    program = [sys.executable, "-m", "bench.short_runs", str(folder), "act", str(runs)]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run([*command, *program], env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return trace.read_text().count("sync(")
