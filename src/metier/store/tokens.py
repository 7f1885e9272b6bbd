"""Resume tokens: `context:version:turn:expiry:signature`, checked in constant time, refused with one sentence.

Pure but for `load_resume_keys`. That a token works once is the store's doing: see `contexts.ContextStore.redeem`.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from metier.store.contexts import Redemption
from metier.store.local_secret import load_local_secret, read_given_secrets

LIFETIME_SECONDS = 7 * 24 * 3600.0
_PARTS = re.compile(
    r"(?P<context>.+):(?P<version>0|[1-9]\d{0,17}):(?P<turn>0|[1-9]\d{0,17}):(?P<expiry>[1-9]\d{0,17})",
    re.ASCII | re.DOTALL,
)
_MAX_TOKEN_LENGTH = 2048
"""Longer ones are looked at only so far."""


@dataclass(frozen=True, slots=True)
class ResumeKeys:
    """The first signs; all of them are good."""

    secrets: tuple[bytes, ...] = field(repr=False)


class Wanted(Struct, frozen=True, kw_only=True):
    """What a token must be for."""

    context_id: str
    bound_to: str = ""
    """Whatever the token was bound to: a request, a user, a hash of arguments."""


def load_resume_keys(runs: Path, environ: Mapping[str, str], *, home: Path | None = None) -> ResumeKeys:
    """From the environment, else from the secret of the user, one key for each folder of runs.

    Raises `UsageError` and `StoreUnavailable`.
    """
    if given := read_given_secrets(environ):
        return ResumeKeys(given)
    secret = load_local_secret(home or Path(environ.get("HOME") or Path.home()))
    purpose = json.dumps(["metier resume key 1", str(runs.resolve())]).encode()
    return ResumeKeys((hmac.digest(secret, purpose, "sha256"),))


def sign_token(wanted: Wanted, *, version: int, turn: int, expires_at: datetime, keys: ResumeKeys) -> str:
    body = f"{wanted.context_id}:{version}:{turn}:{int(expires_at.timestamp())}"
    return f"{body}:{_sign(body, wanted.bound_to, keys.secrets[0])}"


def check_token(
    token: str, wanted: Wanted, *, keys: ResumeKeys, now: datetime, message_id: str = ""
) -> Redemption | None:
    """None for every token that is not good, after the same work whatever is wrong with it."""
    body, _, signature = token[:_MAX_TOKEN_LENGTH].rpartition(":")
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
