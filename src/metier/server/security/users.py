"""Who makes a request: a user with a role, known by a token or by the cookie that a token was exchanged for."""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Literal, cast

from metier.dataclass import dataclass

type Role = Literal["peer", "viewer", "approver", "operator"]
"""A peer is another program: it may use the doors, `/mcp` and `/a2a`, and nothing else."""

_RANK: dict[Role, int] = {"peer": -1, "viewer": 0, "approver": 1, "operator": 2}
_COOKIE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    role: Role
    session_id: str = ""
    """The browser session that the request belongs to; empty for a request with a token."""

    def may(self, role: Role) -> bool:
        """An operator may do what an approver may, who may do what a viewer may."""
        return _RANK[self.role] >= _RANK[role]


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Everyone who may use the server, by the digest of their token."""

    by_digest: dict[str, User] = field(repr=False)

    def find(self, token: str) -> User | None:
        """By digest, so that the time of the search says nothing about the token."""
        return self.by_digest.get(digest_token(token))

    def knows(self, name: str, role: Role) -> bool:
        return any((user.name, user.role) == (name, role) for user in self.by_digest.values())


def build_users(*, token: str, owner: str, entries: Sequence[str]) -> Users:
    """The owner of the server's own token, an operator, and the named users of the settings."""
    named = [_parse_entry(entry) for entry in entries]
    return Users(by_digest={digest_token(token): User(name=owner, role="operator"), **dict(named)})


def build_entry(name: str, role: Role, token: str) -> str:
    """What stands in `server.users` for a user with this token."""
    return f"{name}:{role}:{digest_token(token)}"


def digest_token(token: str) -> str:
    """Tokens are random and long: nothing is gained by a slow hash."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def make_token() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Signed cookies: every process with the key reads them, none has to remember one."""

    key: bytes = field(repr=False)
    users: Users
    lifetime: timedelta

    def issue(self, user: User, *, now: datetime) -> str:
        expires = int((now + self.lifetime).timestamp())
        words = [_COOKIE_VERSION, user.name, user.role, expires, secrets.token_urlsafe(12)]
        body = base64.urlsafe_b64encode(json.dumps(words).encode()).decode()
        return f"{body}.{self._sign('session', body)}"

    def read(self, cookie: str, *, now: datetime) -> User | None:
        """The user of a cookie; None for one that was forged or changed, ran out, or whose user is gone."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        version, name, role, expires, session_id = cast(
            "tuple[int, str, Role, int, str]", json.loads(base64.urlsafe_b64decode(body))
        )  # signed, so written by `issue`
        if version != _COOKIE_VERSION or expires <= now.timestamp() or not self.users.knows(name, role):
            return None
        return User(name=name, role=role, session_id=session_id)

    def csrf_token(self, user: User) -> str:
        """What a form or a script of a page of this session must send back; empty for a user without a session."""
        return self._sign("csrf", user.session_id) if user.session_id else ""

    def is_csrf_token(self, user: User, given: str) -> bool:
        expected = self.csrf_token(user)
        return bool(expected) and hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.digest(self.key, f"{purpose} {text}".encode(), "sha256").hex()


def _parse_entry(entry: str) -> tuple[str, User]:
    """The settings have checked its form."""
    name, role, digest = entry.split(":")
    return digest, User(name=name, role=cast("Role", role))  # one of the three by the pattern of the setting
