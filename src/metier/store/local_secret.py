"""The secret of a user's stores: `AGENT_RESUME_SECRET`, or else `~/.agent/keys/store.key`, created on first use.

The file is outside of every workspace, readable only by its owner, and never part of an archive. So its signatures
prove that this user wrote something. Workers with different home folders share the secret through the environment.
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
"""One or more secrets separated by spaces. The first one signs and all are accepted, so that secrets can be rotated."""
KEY_FILE = ".agent/keys/store.key"
# 32 hexadecimal digits have 128 bits.
_MIN_SECRET_LENGTH = 32


def read_given_secrets(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Read the secrets of the environment. Raises `UsageError` for one that is too short."""
    given = tuple(environ.get(VARIABLE, "").split())
    if any(len(secret) < _MIN_SECRET_LENGTH for secret in given):
        raise UsageError(
            f"A secret in {VARIABLE} is shorter than {_MIN_SECRET_LENGTH} characters",
            hint="Create one with `python3 -c 'import secrets; print(secrets.token_hex(32))'`",
        )
    return tuple(secret.encode() for secret in given)


def load_local_secret(home: Path) -> bytes:
    """Load the secret of the home folder. Raises `StoreUnavailable` if it can be neither read nor created."""
    path = home / KEY_FILE
    try:
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as error:
        raise StoreUnavailable(
            f"The key file '{path}' cannot be used: {error.strerror}",
            hint=f"Check that you can write to this folder, or set {VARIABLE}",
        ) from error


def _create(path: Path) -> None:
    # Written under another name and then linked, so that other processes only see a complete file, and one of two
    # concurrent processes wins.
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
    # With the secret, other users could forge tokens and archives.
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UsageError(f"The key file '{path}' is readable by other users", hint=f"Run `chmod 600 {path}`")
    secret = path.read_bytes().strip()
    if len(secret) < _MIN_SECRET_LENGTH:
        raise UsageError(f"The key in '{path}' is too short", hint="Delete the file; a new one is created")
    return secret
