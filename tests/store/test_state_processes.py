"""Many concurrent processes on one conversation, on both stores: no lost update, no repeated message.

An ordinary run has all processes and a fifth of the updates; `METIER_STATE_ALL=1` runs all of them.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from state_child import build_options

from metier.store.state_store import open_state_store

pytestmark = pytest.mark.slow

SHARE = 1 if os.environ.get("METIER_STATE_ALL") else 5
COUNTING = 60 // SHARE
"""Number of processes that count at once."""
CHILD = Path(__file__).with_name("state_child.py")


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> dict[str, str]:
    """Store settings from the environment."""
    if request.param == "sqlite":
        return {"STATE_STORE_BACKEND": "sqlite"}
    return {"STATE_STORE_BACKEND": "postgres", "DATABASE_URL": request.getfixturevalue("postgres_url")}


def run_processes(what: str, folder: Path, backend: dict[str, str], *, processes: int, times: int) -> None:
    command = [sys.executable, str(CHILD), what, str(folder), str(processes), str(times)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
    done = subprocess.run(command, env=environ | backend, capture_output=True, text=True, timeout=500)
    assert (done.stdout, done.returncode) == (json.dumps({"codes": [0]}) + "\n", 0), done.stderr[-4000:]


@pytest.mark.slow
def test_concurrent_counters_lose_no_increment(backend: dict[str, str], tmp_path: Path) -> None:
    counts = COUNTING * (100 // SHARE)

    run_processes("count", tmp_path, backend, processes=COUNTING, times=100 // SHARE)

    with open_state_store("ctx", build_options(tmp_path, backend)) as store:
        state = store.get_state()
        assert (state.current_turn, state.version) == (counts + 1, counts)


@pytest.mark.slow
def test_duplicates_of_a_hundred_messages_are_processed_a_hundred_times(
    backend: dict[str, str], tmp_path: Path
) -> None:
    run_processes("messages", tmp_path, backend, processes=8, times=1250 // SHARE)

    done = Counter((tmp_path / "work").read_text(encoding="utf-8").split())
    assert done == {f"m{number:02}": 1 for number in range(100)}
