"""The secret of a user's stores: `AGENT_RESUME_SECRET`, else `~/.agent/keys/store.key`, made on first use.

It lies outside of every workspace, is readable by its owner alone, and goes into no archive: what is signed with it was
written here. Workers of one store that have different homes share it through the environment.
"""

import contextlib
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from metier.errors import UsageError
from metier.store.failures import StoreUnavailable

VARIABLE = "AGENT_RESUME_SECRET"
"""Holds the secret, or several with blanks between them: the first signs, all are good. So a secret can be changed."""
KEY_FILE = ".agent/keys/store.key"
_SHORTEST_SECRET = 32


def read_given_secrets(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Those of the environment. Raises `UsageError` for one that is too short to be one."""
    given = tuple(environ.get(VARIABLE, "").split())
    if any(len(secret) < _SHORTEST_SECRET for secret in given):
        raise UsageError(
            f"A secret in {VARIABLE} is shorter than {_SHORTEST_SECRET} characters",
            hint="Make one with `python3 -c 'import secrets; print(secrets.token_hex(32))'`",
        )
    return tuple(secret.encode() for secret in given)


def load_local_secret(home: Path) -> bytes:
    """The one in the home folder. Raises `StoreUnavailable` where it can be neither read nor made."""
    path = home / KEY_FILE
    try:
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as error:
        raise StoreUnavailable(
            f"The key of this user's stores '{path}' cannot be used: {error.strerror}",
            hint=f"Check that you may write to this folder, or set {VARIABLE}",
        ) from error


def _create(path: Path) -> None:
    """Linked into place whole: another process sees all of it or nothing, and of two that create it one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(32) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()


def _read(path: Path) -> bytes:
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UsageError(
            f"Others may read the key of this user's stores '{path}'", hint=f"Make it yours alone: chmod 600 {path}"
        )
    secret = path.read_bytes().strip()
    if len(secret) < _SHORTEST_SECRET:
        raise UsageError(
            f"The key of this user's stores '{path}' is too short", hint="Remove the file; a new one is made"
        )
    return secret
