"""Resume tokens: `context:version:turn:expiry:signature`, checked in constant time, refused with one sentence.

Pure but for `load_resume_keys`. That a token works once is the store's doing: see `contexts.ContextStore.redeem`.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from metier.errors import UsageError
from metier.store.contexts import Redemption
from metier.store.failures import StoreUnavailable

VARIABLE = "AGENT_RESUME_SECRET"
"""Holds the secret, or several with blanks between them: the first signs, all are good. So a secret can be changed."""
KEY_FILE = "resume.key"
LIFETIME_SECONDS = 7 * 24 * 3600.0
_SHORTEST_SECRET = 32
_PARTS = re.compile(
    r"(?P<context>.+):(?P<version>0|[1-9]\d{0,17}):(?P<turn>0|[1-9]\d{0,17}):(?P<expiry>[1-9]\d{0,17})",
    re.ASCII | re.DOTALL,
)
_LONGEST_TOKEN = 2048
"""Longer ones are looked at only so far."""


@dataclass(frozen=True, slots=True)
class ResumeKeys:
    """The first signs; all of them are good."""

    secrets: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a token must be for."""

    context_id: str
    bound_to: str = ""
    """Whatever the token was bound to: a request, a person, a hash of arguments."""


def load_resume_keys(folder: Path, environ: Mapping[str, str]) -> ResumeKeys:
    """From the environment, else from a file in `folder` that only its owner may read, made on first use."""
    given = tuple(environ.get(VARIABLE, "").split())
    if any(len(secret) < _SHORTEST_SECRET for secret in given):
        raise UsageError(
            f"A secret in {VARIABLE} is shorter than {_SHORTEST_SECRET} characters",
            hint="Make one with `python3 -c 'import secrets; print(secrets.token_hex(32))'`",
        )
    if given:
        return ResumeKeys(tuple(secret.encode() for secret in given))
    path = folder / KEY_FILE
    try:
        if not path.exists():
            _create(path)
        return ResumeKeys((_read(path),))
    except OSError as error:
        raise StoreUnavailable(
            f"The key of resume tokens '{path}' cannot be used: {error.strerror}",
            hint=f"Check that you may write to this folder, or set {VARIABLE}",
        ) from error


def sign_token(wanted: Wanted, *, version: int, turn: int, expires_at: datetime, keys: ResumeKeys) -> str:
    body = f"{wanted.context_id}:{version}:{turn}:{int(expires_at.timestamp())}"
    return f"{body}:{_sign(body, wanted.bound_to, keys.secrets[0])}"


def check_token(
    token: str, wanted: Wanted, *, keys: ResumeKeys, now: datetime, message_id: str = ""
) -> Redemption | None:
    """None for every token that is not good, after the same work whatever is wrong with it."""
    body, _, signature = token[:_LONGEST_TOKEN].rpartition(":")
    is_signed = False
    for secret in keys.secrets:
        is_signed |= _equal(signature, _sign(body, wanted.bound_to, secret))
    parts = _PARTS.fullmatch(body)
    is_meant = _equal(parts["context"] if parts else "", wanted.context_id)
    is_fresh = int(parts["expiry"] if parts else 0) > now.timestamp()
    if not (is_signed & is_meant & is_fresh) or parts is None:
        return None
    digest = hashlib.sha256(json.dumps([token, message_id]).encode()).hexdigest() if message_id else ""
    return Redemption(version=int(parts["version"]), turn=int(parts["turn"]), digest=digest)


def _sign(body: str, bound_to: str, secret: bytes) -> str:
    # As JSON, so that no two pairs of texts look the same.
    return hmac.digest(secret, json.dumps(["metier resume 1", body, bound_to]).encode(), "sha256").hex()


def _equal(one: str, other: str) -> bool:
    """In a time that depends on neither content nor, the texts being hashed first, on where or how they differ."""
    return hmac.compare_digest(*(hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (one, other)))


def _create(path: Path) -> None:
    """Linked into place whole: another process sees all of it or nothing, and of two that create it one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
            f"Others may read the key of resume tokens '{path}'", hint=f"Make it yours alone: chmod 600 {path}"
        )
    secret = path.read_bytes().strip()
    if len(secret) < _SHORTEST_SECRET:
        raise UsageError(f"The key of resume tokens '{path}' is too short", hint="Remove the file; a new one is made")
    return secret
