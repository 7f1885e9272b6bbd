"""The question before an installation, at a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.skills.conftest import Machine

AGENT = Path(sys.executable).with_name("agent")


@pytest.mark.parametrize("answer", [(b"\x03", 130), (b"\x04", 1), (b"maybe\n", 1), (b"y\n", 0)])
def test_ctrl_c_end_of_input_and_words_answer_the_confirmation(
    machine: Machine, make_folder: Callable[..., Path], answer: tuple[bytes, int]
) -> None:
    typed, code = answer
    folder = make_folder("asked")
    terminal, end = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(end), os.O_RDWR))

    process = subprocess.Popen(
        [AGENT, "skill", "add", str(folder)],
        stdin=end,
        stdout=subprocess.DEVNULL,
        stderr=end,
        cwd=machine.workspace,
        preexec_fn=take_terminal,  # noqa: PLW1509 - the only way to give a child a terminal of its own
    )
    try:
        seen = b""
        while b"[N]o:" not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, typed)

        assert process.wait(timeout=60) == code
        assert ("asked" in machine.registry.skills) == (code == 0)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(end)


def test_trusted_installs_and_trusts_without_asking(machine: Machine, make_folder: Callable[..., Path]) -> None:
    result = machine.agent("add", str(make_folder("notes")), "--trusted", "--json")

    assert (result.code, result.json["trusted"]) == (0, True)
