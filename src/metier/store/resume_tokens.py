"""Resume tokens: `context:version:turn:expiry:signature`, checked in constant time.

Pure, except for `load_resume_keys`. The store ensures that a token only works once: see `contexts.ContextStore.redeem`.
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
# At most 18 digits, which fit into the 64 bits of the database's integers.
_PARTS = re.compile(
    r"(?P<context>.+):(?P<version>0|[1-9]\d{0,17}):(?P<turn>0|[1-9]\d{0,17}):(?P<expiry>[1-9]\d{0,17})",
    re.ASCII | re.DOTALL,
)
_MAX_TOKEN_LENGTH = 2048
"""Longer tokens are truncated, which makes them invalid."""


# A dataclass, not a Struct: its `repr` must not show the secrets.
@dataclass(frozen=True, slots=True)
class ResumeKeys:
    """The secrets of tokens. The first one signs, and all are accepted."""

    secrets: tuple[bytes, ...] = field(repr=False)


class TokenSubject(Struct, frozen=True, kw_only=True):
    """The conversation of a token, and what else the token is bound to."""

    context_id: str
    bound_to: str = ""
    """A request, a user, or a hash of arguments. The token is only valid for the same value."""


def load_resume_keys(runs: Path, environ: Mapping[str, str], *, home: Path | None = None) -> ResumeKeys:
    """Load the keys from the environment, or derive one per runs folder. Raises `UsageError`, `StoreUnavailable`."""
    if given := read_given_secrets(environ):
        return ResumeKeys(given)
    secret = load_local_secret(home or Path(environ.get("HOME") or Path.home()))
    # One key per folder, so that a token of one workspace is invalid in another.
    purpose = json.dumps(["metier resume key 1", str(runs.resolve())]).encode()
    return ResumeKeys((hmac.digest(secret, purpose, "sha256"),))


def sign_token(subject: TokenSubject, *, version: int, turn: int, expires_at: datetime, keys: ResumeKeys) -> str:
    body = f"{subject.context_id}:{version}:{turn}:{int(expires_at.timestamp())}"
    return f"{body}:{_sign(body, subject.bound_to, keys.secrets[0])}"


def check_token(
    token: str, subject: TokenSubject, *, keys: ResumeKeys, now: datetime, message_id: str = ""
) -> Redemption | None:
    """Return None for an invalid token."""
    # All checks run even if the first one fails, so that the time doesn't reveal which part of a token is wrong.
    body, _, signature = token[:_MAX_TOKEN_LENGTH].rpartition(":")
    is_signed = False
    for secret in keys.secrets:
        is_signed |= _equal(signature, _sign(body, subject.bound_to, secret))
    parts = _PARTS.fullmatch(body)
    is_expected = _equal(parts["context"] if parts else "", subject.context_id)
    is_fresh = int(parts["expiry"] if parts else 0) > now.timestamp()
    if not (is_signed & is_expected & is_fresh) or parts is None:
        return None
    digest = hashlib.sha256(json.dumps([token, message_id]).encode()).hexdigest() if message_id else ""
    return Redemption(version=int(parts["version"]), turn=int(parts["turn"]), digest=digest)


def _sign(body: str, bound_to: str, secret: bytes) -> str:
    # Joined as JSON, so that different pairs never give the same bytes.
    return hmac.digest(secret, json.dumps(["metier resume 1", body, bound_to]).encode(), "sha256").hex()


def _equal(one: str, other: str) -> bool:
    # Hashed first, so that the time also doesn't depend on the lengths.
    return hmac.compare_digest(*(hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (one, other)))
