"""A command called in the test process has its own folder, environment and streams."""

import os
import signal
import sys
from pathlib import Path

from agent_command import run_agent


def test_a_command_reads_its_input_and_its_output_is_returned(tmp_path: Path) -> None:
    done = run_agent("redact", cwd=tmp_path, stdin="key sk-" + "ant-api03-" + "a1B2" * 12 + "\n")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("key ")
    assert "a1B2a1B2" not in done.stdout


def test_a_command_does_not_change_the_test_process(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    before = Path.cwd(), dict(os.environ), signal.getsignal(signal.SIGINT), sys.stdin, sys.stdout, sys.stderr

    done = run_agent(
        "run", "--provider", "offline", "inventory the workspace", "--no-such-option", cwd=tmp_path, env=environ
    )
    listed = run_agent("runs", "list", "--json", cwd=tmp_path, env=environ)

    assert done.returncode == 2
    assert "no-such-option" in done.stderr
    assert (listed.returncode, listed.stdout) == (0, "[]\n")
    after = Path.cwd(), dict(os.environ), signal.getsignal(signal.SIGINT), sys.stdin, sys.stdout, sys.stderr
    assert after == before
