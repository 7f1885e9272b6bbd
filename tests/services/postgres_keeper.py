"""One PostgreSQL server for all processes of a test run: started on first use, ended with the last process.

    with shared_server(folder) as server:
        address = server.create_database("mine")

A separate process keeps the server; each user holds a connection to it until it exits, so that a killed one leaves no
server. The processes of a test run share `folder`.
"""

import contextlib
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

from filelock import FileLock

from metier.errors import MetierError
from services.postgres_server import PostgresServer, find_binaries, run_server

_TESTS = Path(__file__).resolve().parents[1]
_IDLE_SECONDS = 5.0
_START_SECONDS = 120.0
_LOCK_SECONDS = 240.0


@contextlib.contextmanager
def shared_server(folder: Path) -> Generator[PostgresServer]:
    """Return the shared server. Raise `MetierError` if PostgreSQL is missing or does not start."""
    binaries = find_binaries()
    if binaries is None:
        raise MetierError("PostgreSQL is not installed here", hint="Install it, or run the tests with `./dev test`")
    with FileLock(folder / "postgres.lock", timeout=_LOCK_SECONDS):
        connection = _join(folder) or _start(folder)
    with connection:
        kept = json.loads((folder / "postgres.json").read_text(encoding="utf-8"))
        yield PostgresServer(binaries=binaries, folder=Path(kept["folder"]), port=kept["port"], account=None)


def keep(folder: Path) -> None:
    """Run the server until no process has been connected for a while."""
    binaries = find_binaries()
    assert binaries is not None, "the caller has looked"
    with run_server(binaries) as server, socket.create_server(("127.0.0.1", 0)) as door:
        kept = {"folder": str(server.folder), "port": server.port, "door": door.getsockname()[1]}
        part = folder / "postgres.part"
        part.write_text(json.dumps(kept), encoding="utf-8")
        part.replace(folder / "postgres.json")
        while True:
            _serve(door)
            # Under the lock no other process can be about to join.
            with FileLock(folder / "postgres.lock"):
                if not select.select([door], [], [], 0)[0]:
                    (folder / "postgres.json").unlink(missing_ok=True)
                    return


def _serve(door: socket.socket) -> None:
    users: list[socket.socket] = []
    idle_since = time.monotonic()
    while users or time.monotonic() - idle_since < _IDLE_SECONDS:
        ready, _, _ = select.select([door, *users], [], [], 1.0)
        for one in ready:
            if one is door:
                users.append(door.accept()[0])
            else:  # clients send nothing: a readable socket is a closed one
                users.remove(one)
                one.close()
        if users:
            idle_since = time.monotonic()


def _join(folder: Path) -> socket.socket | None:
    try:
        kept = json.loads((folder / "postgres.json").read_text(encoding="utf-8"))
        return socket.create_connection(("127.0.0.1", kept["door"]), timeout=60)
    except OSError:
        return None


def _start(folder: Path) -> socket.socket:
    (folder / "postgres.json").unlink(missing_ok=True)
    with (folder / "postgres.log").open("ab") as log:
        command = [sys.executable, "-m", "services.postgres_keeper", str(folder.resolve())]
        keeper = subprocess.Popen(
            command, cwd=_TESTS, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + _START_SECONDS
    while (connection := _join(folder)) is None:
        if keeper.poll() is not None or time.monotonic() > deadline:
            said = (folder / "postgres.log").read_text(encoding="utf-8", errors="replace")[-2000:]
            raise MetierError(f"PostgreSQL could not be started: {said}", hint="Look at the log above")
        time.sleep(0.05)
    keeper.returncode = 0  # it outlives us, and no process waits for it
    return connection


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
