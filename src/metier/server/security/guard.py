"""Checks of every request before a route sees it: host, origin, size, rate, user, CSRF; and headers of every response.

An ASGI wrapper around the whole application, mounted ones included, so that no route can forget a check.
"""

import re
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote

from msgspec import Struct, field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metier.ids import Clock
from metier.server.plain_page import is_for_person, render_problem_page
from metier.server.problems import HttpProblem, describe_problem, render_problem
from metier.server.security.hosts import is_allowed_host, is_allowed_origin
from metier.server.security.users import Role, Sessions, User, Users
from metier.telemetry.redaction import Redactor

CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf_token"
LOGIN_PATH = "/login"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM = "application/x-www-form-urlencoded"
_FAILED_PER_MINUTE = 30
_MAX_BUCKETS = 10_000


class RateLimit(Struct):
    """A bucket per user or address that holds a minute's worth of requests and refills steadily.

    In memory: each process of the server counts on its own.
    """

    per_minute: int
    clock: Clock
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Remaining requests, and the time of that count."""

    def take(self, name: str) -> float:
        """0 where the request may continue; else in how many seconds it may."""
        now = self.clock.monotonic()
        left, at = self._buckets.get(name, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - at) * self.per_minute / 60)
        if len(self._buckets) >= _MAX_BUCKETS and name not in self._buckets:
            self._buckets.clear()  # a flood of addresses: forget them rather than run out of memory
        if left < 1:
            self._buckets[name] = (left, now)
            return (1 - left) * 60 / self.per_minute
        self._buckets[name] = (left - 1, now)
        return 0.0


class Access(Struct, kw_only=True):
    """Roles and the paths that they may use."""

    users: Users
    sessions: Sessions
    allowed_hosts: frozenset[str]
    cookie: str
    """The name of the session cookie; one per port, because browsers send cookies to every port of a host."""
    max_body_bytes: int
    root_path: str
    """The path under which a proxy offers the server; empty where there is none."""
    requests: RateLimit
    failures: RateLimit
    redactor: Redactor
    clock: Clock
    public: set[str] = field(default_factory=lambda: {LOGIN_PATH, "/api/v1/health", "/static"})
    """Paths, with everything below them, that need no user. A mounted door may add its own."""
    writers: list[tuple[re.Pattern[str], Role]] = field(default_factory=list[tuple[re.Pattern[str], Role]])
    """The least role for requests that change something, by path; an operator where none fits."""
    tokens_only: set[str] = field(default_factory=lambda: {"/mcp", "/a2a"})
    """Paths where a cookie does not count: other programs call there, with a token."""

    def is_public(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self.public)

    def is_door(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self.tokens_only)

    def get_least_role(self, path: str, method: str) -> Role:
        if method in SAFE:
            return "viewer"
        fitting: list[Role] = [role for pattern, role in self.writers if pattern.fullmatch(path)]
        return fitting[0] if fitting else "operator"

    def allow_writes(self, path: str, role: Role) -> None:
        """Let users of a role below operator change something at paths that fit this expression."""
        self.writers.append((re.compile(path), role))


def build_access_limits(per_minute: int, clock: Clock) -> tuple[RateLimit, RateLimit]:
    return RateLimit(per_minute, clock), RateLimit(_FAILED_PER_MINUTE, clock)


class Guard:
    """The ASGI wrapper. Routes find the user and the nonce in `request.state`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = _enter(scope, self._access.root_path)
        nonce = secrets.token_urlsafe(16)
        state: dict[str, object] = scope.setdefault("state", {})
        state["nonce"] = nonce
        state["user"] = None
        answer = _with_headers(send, nonce=nonce)
        try:
            receive = await self._check(scope, receive)
        except _Redirect as away:
            await RedirectResponse(f"{self._access.root_path}{away.path}", status_code=303)(scope, receive, answer)
        except HttpProblem as problem:
            headers = {"www-authenticate": "Bearer"} if problem.status == 401 else {}
            if isinstance(problem, _TooMany):
                headers["retry-after"] = str(problem.seconds)
            refusal = self._describe_refusal(scope, problem, headers)
            await refusal(scope, receive, answer)
        else:
            await self._app(scope, receive, answer)

    def _describe_refusal(self, scope: Scope, problem: HttpProblem, headers: dict[str, str]) -> Response:
        document = describe_problem(problem, self._access.redactor)
        if not is_for_person(_get_path(scope), Headers(scope=scope).get("accept", "")):
            return render_problem(document, headers=headers)
        nonce = str(scope["state"]["nonce"])
        return render_problem_page(document, nonce=nonce, base=self._access.root_path, headers=headers)

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        """Raises `HttpProblem`. Cheap checks first; what is returned reads the body."""
        access, headers = self._access, Headers(scope=scope)
        path, method = _get_path(scope), str(scope["method"])
        if not is_allowed_host(headers.get("host", ""), access.allowed_hosts):
            raise HttpProblem(
                421,
                "host_not_allowed",
                "The server is not reached under this host name",
                hint="Name the host in server.allowed_hosts",
            )
        _check_site(headers, method, access.allowed_hosts)
        receive = _bounded(receive, headers, most=access.max_body_bytes)
        user = self._find_user(scope, headers, path)
        scope["state"]["user"] = user
        wait = access.requests.take(user.name if user else f"address {_get_address(scope)}")
        if wait:
            raise _TooMany(wait)
        if access.is_public(path):
            return receive
        if user is None:
            raise self._refuse(headers, path, method)
        if not (user.role == "peer" and access.is_door(path)):
            _check_role(user, access.get_least_role(path, method))
        if method not in SAFE and user.session_id:
            return await self._check_csrf(user, headers, receive)
        return receive

    def _find_user(self, scope: Scope, headers: Headers, path: str) -> User | None:
        """By the token, else by the cookie. Raises `HttpProblem` for a token that is not good."""
        access = self._access
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            user = access.users.find(token.strip())
            if user is None:
                # Only failures are counted, so that guessing is slow and users are not.
                if wait := access.failures.take(_get_address(scope)):
                    raise _TooMany(wait)
                raise HttpProblem(401, "token_refused", "The token is not one of this server", hint=_TOKEN_HINT)
            return user
        if any(path == each or path.startswith(f"{each}/") for each in access.tokens_only):
            return None
        cookie = _read_cookie(headers.get("cookie", ""), access.cookie)
        return access.sessions.read(cookie, now=access.clock.now()) if cookie else None

    def _refuse(self, headers: Headers, path: str, method: str) -> Exception:
        if method in SAFE and is_for_person(path, headers.get("accept", "")):
            return _Redirect(f"{LOGIN_PATH}?next={quote(path, safe='/')}")
        return HttpProblem(401, "token_missing", "The request carries no token of this server", hint=_TOKEN_HINT)

    async def _check_csrf(self, user: User, headers: Headers, receive: Receive) -> Receive:
        given = headers.get(CSRF_HEADER, "")
        if not given and headers.get("content-type", "").startswith(_FORM):
            body = await _read_body(receive)
            receive = _replay(body, receive)
            given = parse_qs(body.decode("utf-8", "replace")).get(CSRF_FIELD, [""])[0]
        if not self._access.sessions.is_csrf_token(user, given):
            raise HttpProblem(
                403, "csrf_token_refused", "The form does not belong to this session", hint="Load the page again"
            )
        return receive


_TOKEN_HINT = "Send `Authorization: Bearer` with the token of the file that `agent serve` names"  # noqa: S105


class _Redirect(Exception):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _TooMany(HttpProblem):
    def __init__(self, seconds: float) -> None:
        super().__init__(429, "too_many_requests", "Too many requests", hint="Wait as long as Retry-After says")
        self.seconds = max(1, round(seconds + 0.5))


def _check_site(headers: Headers, method: str, allowed: frozenset[str]) -> None:
    """A browser says where a request comes from. Links from elsewhere may open a page, and do nothing else."""
    is_page = method in SAFE and headers.get("sec-fetch-mode", "navigate") == "navigate"
    is_stream = "text/event-stream" in headers.get("accept", "")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_foreign = (origin is not None and not is_allowed_origin(origin, allowed)) or site in ("cross-site", "same-site")
    if is_foreign and (not is_page or is_stream or origin is not None):
        raise HttpProblem(403, "foreign_origin", "The request comes from a page of another site")


def _check_role(user: User, least: Role) -> None:
    if not user.may(least):
        raise HttpProblem(
            403,
            "role_too_low",
            f"User {user.name!r} is {_article(user.role)}, and this needs {_article(least)}",
            hint="Ask an operator",
        )


def _article(role: Role) -> str:
    return f"an {role}" if role[0] in "ao" else f"a {role}"


def _bounded(receive: Receive, headers: Headers, *, most: int) -> Receive:
    """Refuses a body that is announced as too long, and stops reading one that turns out to be."""
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise _build_too_long(most)
    read = 0

    async def receive_bounded() -> Message:
        nonlocal read
        message = await receive()
        if message["type"] == "http.request":
            read += len(message.get("body", b""))
            if read > most:
                # What reads a body passes this kind on, and makes every other one a wrong body.
                raise HTTPException(413, _build_too_long(most).message)
        return message

    return receive_bounded


def _build_too_long(most: int) -> HttpProblem:
    return HttpProblem(413, "body_too_long", f"The body is longer than {most} bytes", hint="Send less at a time")


async def _read_body(receive: Receive) -> bytes:
    """Of a form; `_bounded` limits it."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(pieces)
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def _replay(body: bytes, receive: Receive) -> Receive:
    is_told = False

    async def receive_again() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _with_headers(send: Send, *, nonce: str) -> Send:
    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _build_headers(nonce).items():
                headers.setdefault(name, value)
        await send(message)

    return send_guarded


def _build_headers(nonce: str) -> dict[str, str]:
    """A response may bring its own, such as a download with a policy of its own."""
    policy = (
        "default-src 'none'",
        f"script-src 'nonce-{nonce}'",
        f"style-src 'self' 'nonce-{nonce}'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "manifest-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "trusted-types htmx",
        "require-trusted-types-for 'script'",
    )
    return {
        "content-security-policy": "; ".join(policy),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        # Not `no-referrer`: browsers then send `Origin: null` with the forms of our own pages, which is refused.
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }


def _read_cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _enter(scope: Scope, root: str) -> Scope:
    """A proxy may leave its path in front of the request's, or take it away; the application sees it in both cases."""
    if not root:
        return scope
    path = str(scope["path"])
    is_below = path == root or path.startswith(f"{root}/")
    return {**scope, "root_path": root, "path": path if is_below else f"{root}{path}"}


def _get_path(scope: Scope) -> str:
    """Below the path under which a proxy offers the server."""
    root, path = str(scope.get("root_path", "")), str(scope["path"])
    return path.removeprefix(root) if root and path.startswith(root) else path


def _get_address(scope: Scope) -> str:
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else "unknown"
