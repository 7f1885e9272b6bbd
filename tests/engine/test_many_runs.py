"""One process drives many concurrent runs whose event logs share a limited number of descriptors."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RUNS = 200
PROGRAM = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from pathlib import Path
import anyio
from bench.many_runs import hold
held = anyio.run(hold, Path(sys.argv[1]), {RUNS})
print(held.completed, held.descriptors, held.records)
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 400, reason="fewer files may be open here")
def test_a_process_can_drive_more_runs_than_open_logs(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environ, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    completed, descriptors, records = map(int, done.stdout.split())
    assert completed == RUNS
    assert descriptors < 300  # two for each of 128 logs, not for each run
    assert records == RUNS  # every log is whole, from the start of its run to its end
