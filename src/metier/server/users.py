"""Users of the server: roles and grants, tokens, one-time login codes and session cookies."""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from metier.runtime.one_time_tokens import OneTimeTokens

type Role = Literal["peer", "viewer", "approver", "operator"]
"""A peer is another program: it may use `/mcp` and `/a2a` only."""

type Grant = Literal["edit", "limits", "code", "read"]
"""A permission beyond a user's role. Operators have all of them; other users have those that their entry names.

`edit` changes the arguments of a call before approving it, `limits` raises the limits of a run, `code` accepts changed
files of skills, `read` lets a peer read all runs instead of its own.
"""

GRANTS_BY_ROLE: dict[Role, tuple[Grant, ...]] = {
    "peer": ("read",),
    "viewer": (),
    "approver": ("edit", "limits", "code"),
    "operator": (),
}
"""The grants that an entry of `server.users` may name."""

_RANK: dict[Role, int] = {"peer": -1, "viewer": 0, "approver": 1, "operator": 2}
_COOKIE_VERSION = 1


class User(Struct, frozen=True, kw_only=True):
    name: str
    role: Role
    grants: frozenset[Grant] = frozenset()
    session_id: str = ""
    """The browser session of the request; empty for a request with a token."""

    def may(self, role: Role) -> bool:
        """Return whether the role includes another one: each role includes those below it."""
        return _RANK[self.role] >= _RANK[role]

    def has(self, grant: Grant) -> bool:
        return self.role == "operator" or grant in self.grants


# Dataclasses, not Structs: their `repr` must not show digests, secrets and keys.
@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """All users by the digest of their token."""

    by_digest: dict[str, User] = field(repr=False)

    def find(self, token: str) -> User | None:
        """Find a user by the token's digest, so that the time of the search reveals nothing about the token."""
        return self.by_digest.get(digest_token(token))

    def find_named(self, name: str, role: Role) -> User | None:
        return next((user for user in self.by_digest.values() if (user.name, user.role) == (name, role)), None)


def build_users(*, token: str, owner: str, entries: Sequence[str]) -> Users:
    """Build the users: the owner of the server's token, an operator, and those of `server.users`."""
    named = [_parse_entry(entry) for entry in entries]
    return Users(by_digest={digest_token(token): User(name=owner, role="operator"), **dict(named)})


def build_entry(name: str, role: Role, token: str, *, grants: Sequence[Grant] = ()) -> str:
    """Build the entry of `server.users` for a user."""
    return f"{name}:{'+'.join([role, *grants])}:{digest_token(token)}"


def digest_token(token: str) -> str:
    """Digest a token. A slow hash is not needed, because tokens are long and random."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def make_token() -> str:
    return secrets.token_urlsafe(32)


PROXY_SECRET_VARIABLE = "AGENT_SERVER_PROXY_SECRET"  # noqa: S105 - the name of the variable
MAX_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyUsers:
    """Users that a reverse proxy signed in, for example by OpenID Connect.

    Their headers count only with the proxy's secret. The proxy's address would not be enough, because every program on
    its machine has the same one.
    """

    secret: str = field(repr=False)
    roles: Mapping[str, Role]
    """By group."""

    def is_proxy(self, secret: str) -> bool:
        # As bytes, because `compare_digest` raises for text with other characters than ASCII.
        return hmac.compare_digest(secret.encode("utf-8", "replace"), self.secret.encode())

    def find(self, name: str, groups: str) -> User | None:
        """Return the user with the highest role of its groups; None if no group has a role."""
        wanted = {group.strip() for group in groups.split(",")}
        roles: list[Role] = [role for group, role in self.roles.items() if group in wanted]
        if not roles or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            return None
        # Browsers are signed in by the proxy's cookie, so their forms need a CSRF token like those of our sessions.
        return User(name=name, role=max(roles, key=_RANK.__getitem__), session_id=f"proxy {name}")


def build_proxy_users(secret: str, entries: Sequence[str]) -> ProxyUsers | None:
    """Build the users of `server.proxy_roles`; None without a secret or entries."""
    if not secret or not entries:
        return None
    # The pattern of the setting admits no other roles.
    roles: dict[str, Role] = {}
    for entry in entries:
        group, _, role = entry.rpartition(":")
        roles[group] = cast("Role", role)
    return ProxyUsers(secret=secret, roles=roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Signed session cookies. Any process with the key can check them, so none stores sessions."""

    key: bytes = field(repr=False)
    users: Users
    lifetime: timedelta

    def issue(self, user: User, *, now: datetime) -> str:
        expires = int((now + self.lifetime).timestamp())
        # The random part identifies the session: its CSRF tokens are derived from it and fit no other session.
        words = [_COOKIE_VERSION, user.name, user.role, expires, secrets.token_urlsafe(12)]
        body = base64.urlsafe_b64encode(json.dumps(words).encode()).decode()
        return f"{body}.{self._sign('session', body)}"

    def read(self, cookie: str, *, now: datetime) -> User | None:
        """Return the user of a cookie; None if it is forged or expired or the user was removed."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        version, name, role, expires, session_id = cast(
            "tuple[int, str, Role, int, str]", json.loads(base64.urlsafe_b64decode(body))
        )  # the signature proves that `issue` wrote it
        # Looked up by name and role: removing a user or changing the role ends its sessions.
        user = self.users.find_named(name, role)
        if version != _COOKIE_VERSION or expires <= now.timestamp() or user is None:
            return None
        return replace(user, session_id=session_id)

    def csrf_token(self, user: User) -> str:
        """Return the CSRF token of forms and scripts in this session; empty for a user without a session."""
        return self._sign("csrf", user.session_id) if user.session_id else ""

    def is_csrf_token(self, user: User, given: str) -> bool:
        expected = self.csrf_token(user)
        return bool(expected) and hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))

    def _sign(self, purpose: str, text: str) -> str:
        # The purpose keeps a signature of one kind from being accepted as another.
        return hmac.digest(self.key, f"{purpose} {text}".encode(), "sha256").hex()


def _parse_entry(entry: str) -> tuple[str, User]:
    """The settings have checked its form."""
    name, roles, digest = entry.split(":")
    role, *grants = roles.split("+")
    # The pattern of the setting admits no other words.
    return digest, User(name=name, role=cast("Role", role), grants=frozenset(cast("list[Grant]", grants)))


LIFETIME_SECONDS = 600


class LoginCodes(Struct, frozen=True):
    """One-time codes that a browser exchanges for a session cookie."""

    folder: Path

    @property
    def _tokens(self) -> OneTimeTokens:
        return OneTimeTokens(folder=self.folder, prefix="code", lifetime_seconds=LIFETIME_SECONDS)

    def issue(self, user: User) -> str:
        """Issue a code that signs in as this user, once, within ten minutes."""
        return self._tokens.issue((user.name, user.role))

    def redeem(self, code: str) -> User | None:
        """Use up a code and return its user; None if it is unknown, used or expired."""
        values = self._tokens.redeem(code)
        if values is None:
            return None
        name, role = values
        return User(name=name, role=cast("Role", role))  # written by `issue`

    def clear(self) -> None:
        """Delete unused codes."""
        self._tokens.clear()
