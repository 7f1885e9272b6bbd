"""A person at a real terminal: the report is shown, the question asked, the answer taken."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.skills.conftest import Machine


def answer(args: list[str], reply: str) -> tuple[int, str]:
    """Run `agent` with a terminal on stdin and stderr; what it showed there, and its exit code."""
    master, slave = pty.openpty()
    os.write(master, reply.encode())
    command = [sys.executable, "-c", "from metier.cli.main import main; main()", "skill", *args]
    process = subprocess.Popen(command, stdin=slave, stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
    except OSError:
        # Linux reports the end of a terminal as an error.
        pass
    os.close(master)
    return process.wait(), shown.decode()


@pytest.mark.parametrize(
    ("reply", "trusted"), [("y\n", [True]), ("u\n", [False]), ("n\n", []), ("\n", []), ("\x04", [])]
)
def test_answer_at_the_terminal_decides(
    machine: Machine, make_folder: Callable[..., Path], *, reply: str, trusted: list[bool]
) -> None:
    folder = make_folder("notes", **{"scripts/find.py": "print(1)\n"})

    exit_code, shown = answer(["add", str(folder)], reply)

    assert exit_code == (0 if trusted else 1)
    assert shown.index("scripts/find.py") < shown.index("Install and trust it?")
    assert [entry.trusted for entry in machine.registry.skills.values()] == trusted


def test_removal_is_confirmed_at_the_terminal(machine: Machine, make_folder: Callable[..., Path]) -> None:
    machine.agent("add", str(make_folder("notes")), "--yes")

    assert answer(["remove", "notes"], "n\n")[0] == 1
    assert list(machine.registry.skills) == ["notes"]
    assert answer(["remove", "notes"], "y\n")[0] == 0
    assert list(machine.registry.skills) == []
