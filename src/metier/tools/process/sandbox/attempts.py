"""Try actions that a sandbox must deny and actions that it must allow. Executed as a file inside one; see `levels.py`.

    python -I -S attempts.py TARGETS

TARGETS is a JSON object of paths and numbers. Prints a JSON object with the success of each attempt. Changes only files
that were created for it.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any


def main(text: str) -> int:
    targets: dict[str, Any] = json.loads(text)
    attempts: dict[str, Callable[[], object]] = {
        "write outside": lambda: write(targets["outside"]),
        "truncate outside": lambda: os.truncate(targets["outside"], 0),
        "make a file outside": lambda: write(targets["outside"] + ".new"),
        "read the home folder": lambda: [read(path) for path in targets["home"]],
        "read a secrets file": lambda: read(targets["secret"]),
        "write the agent's own files": lambda: write(targets["own"]),
        "write the runs": lambda: write(targets["record"]),
        "reach the network": lambda: socket.create_connection(("127.0.0.1", targets["port"]), timeout=2).close(),
        "read the agent's environment": lambda: read(f"/proc/{targets['agent']}/environ"),
        # Signal 0 only checks the permission.
        "signal the agent": lambda: os.kill(targets["agent"], 0),
        "see the agent's command line": lambda: read(f"/proc/{targets['agent']}/cmdline"),
        "make a file at the top of the workspace": lambda: write(targets["new"]),
        "write in the workspace": lambda: write(targets["inside"]),
        "write temporary files": lambda: write(os.path.join(os.environ["TMPDIR"], "file")),  # noqa: PTH118
        "start a program": start,
    }
    print(json.dumps({name: succeeds(attempt) for name, attempt in attempts.items()}))  # noqa: T201
    return 0


def succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def write(path: str) -> None:
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123  pathlib is not worth its import here
        file.write("x")


def read(path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123
        file.read(1)


def start() -> None:
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", ""])  # noqa: S606
    if os.waitpid(child, 0)[1]:
        raise OSError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
