"""Checks of every request: host, origin, size, rate, user, role, CSRF. Adds security headers to every response.

The guard wraps the whole ASGI application including mounted ones, so no route can forget a check.
"""

import re
import secrets
from urllib.parse import parse_qs, quote

from msgspec import Struct, field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metier.ids import Clock
from metier.server.hosts import is_allowed_host, is_allowed_origin
from metier.server.plain_page import is_page_request, render_problem_page
from metier.server.problems import HttpProblem, describe_problem, render_problem
from metier.server.users import ProxyUsers, Role, Sessions, User, Users
from metier.telemetry.redaction import Redactor

CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf_token"
PROXY_SECRET_HEADER = "x-proxy-secret"  # noqa: S105 - the name of the header
PROXY_USER_HEADER, PROXY_GROUPS_HEADER = "x-forwarded-user", "x-forwarded-groups"
LOGIN_PATH = "/login"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM = "application/x-www-form-urlencoded"
_FAILED_PER_MINUTE = 30
_MAX_BUCKETS = 10_000


class RateLimit(Struct):
    """A token bucket per user or address: it holds the requests of one minute and refills steadily.

    Each server process counts on its own.
    """

    per_minute: int
    clock: Clock
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Remaining requests, and the time of that count."""

    def take(self, name: str) -> float:
        """Count a request. Returns the seconds until it is allowed, 0 if it is allowed now."""
        # Not the time of day: setting the clock must not refill a bucket or keep it empty.
        now = self.clock.monotonic()
        left, at = self._buckets.get(name, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - at) * self.per_minute / 60)
        if len(self._buckets) >= _MAX_BUCKETS and name not in self._buckets:
            self._buckets.clear()  # under a flood of addresses, rather lose the counts than run out of memory
        if left < 1:
            self._buckets[name] = (left, now)
            return (1 - left) * 60 / self.per_minute
        self._buckets[name] = (left - 1, now)
        return 0.0


class Access(Struct, kw_only=True):
    """Access rules: hosts, users, and roles by path."""

    users: Users
    sessions: Sessions
    allowed_hosts: frozenset[str]
    cookie: str
    """The name of the session cookie; one per port, because browsers send cookies to every port of a host."""
    max_body_bytes: int
    root_path: str
    """Path prefix that a reverse proxy adds; empty without one."""
    proxy: ProxyUsers | None = None
    """Users that a reverse proxy signs in; None if it doesn't."""
    requests: RateLimit
    failures: RateLimit
    redactor: Redactor
    clock: Clock
    public: set[str] = field(default_factory=lambda: {LOGIN_PATH, "/api/v1/health", "/static"})
    """Paths that need no user, including all paths below. Mounted protocols add theirs."""
    writers: list[tuple[re.Pattern[str], Role]] = field(default_factory=list[tuple[re.Pattern[str], Role]])
    """Minimum role for requests that change something, by path. Without a match it is `operator`."""
    tokens_only: set[str] = field(default_factory=lambda: {"/mcp", "/a2a"})
    """Paths for programs: a token counts there and a cookie does not, so a web page can't use a user's session."""

    def is_public(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self.public)

    def is_protocol(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self.tokens_only)

    def get_min_role(self, path: str, method: str) -> Role:
        if method in SAFE:
            return "viewer"
        matching: list[Role] = [role for pattern, role in self.writers if pattern.fullmatch(path)]
        return matching[0] if matching else "operator"

    def allow_writes(self, path: str, role: Role) -> None:
        """Allow a role to change something at paths that match this regular expression."""
        self.writers.append((re.compile(path), role))


def build_access_limits(per_minute: int, clock: Clock) -> tuple[RateLimit, RateLimit]:
    return RateLimit(per_minute, clock), RateLimit(_FAILED_PER_MINUTE, clock)


class Guard:
    """The ASGI wrapper. It sets `request.state.user` and `request.state.nonce` for routes."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the server has no WebSockets
            # 1008: policy violation.
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = _enter(scope, self._access.root_path)
        # New for each response: a script that was injected into a page must not know it.
        nonce = secrets.token_urlsafe(16)
        state: dict[str, object] = scope.setdefault("state", {})
        state["nonce"] = nonce
        state["user"] = None
        answer = _with_headers(send, nonce=nonce)
        try:
            receive = await self._check(scope, receive)
        except _Redirect as redirect:
            await RedirectResponse(f"{self._access.root_path}{redirect.path}", status_code=303)(scope, receive, answer)
        except HttpProblem as problem:
            # HTTP requires this header with 401.
            headers = {"www-authenticate": "Bearer"} if problem.status == 401 else {}
            if isinstance(problem, _TooMany):
                headers["retry-after"] = str(problem.seconds)
            response = self._render_refusal(scope, problem, headers)
            await response(scope, receive, answer)
        else:
            await self._app(scope, receive, answer)

    def _render_refusal(self, scope: Scope, problem: HttpProblem, headers: dict[str, str]) -> Response:
        document = describe_problem(problem, self._access.redactor)
        if not is_page_request(_get_path(scope), Headers(scope=scope).get("accept", "")):
            return render_problem(document, headers=headers)
        nonce = str(scope["state"]["nonce"])
        return render_problem_page(document, nonce=nonce, base=self._access.root_path, headers=headers)

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        """Check a request, cheap checks first, and return the function that reads its body. Raises `HttpProblem`."""
        access, headers = self._access, Headers(scope=scope)
        path, method = _get_path(scope), str(scope["method"])
        if not is_allowed_host(headers.get("host", ""), access.allowed_hosts):
            raise HttpProblem(
                421,
                "host_not_allowed",
                "The server is not available under this host name",
                hint="Name the host in server.allowed_hosts",
            )
        # Public paths too: other sites must not be able to submit the sign-in form.
        _check_site(headers, method, access.allowed_hosts)
        receive = _bounded(receive, headers, limit=access.max_body_bytes)
        user = self._find_user(scope, headers, path)
        scope["state"]["user"] = user
        # By user, not by address: all users behind one proxy have the same address.
        wait = access.requests.take(user.name if user else f"address {_get_address(scope)}")
        if wait:
            raise _TooMany(wait)
        if access.is_public(path):
            return receive
        if user is None:
            raise self._ask_to_sign_in(headers, path, method)
        # A peer ranks below every other role, so the check of roles would never let it in.
        if not (user.role == "peer" and access.is_protocol(path)):
            _check_role(user, access.get_min_role(path, method))
        # A token in a header can't be sent by another site's page, so only browser sessions need a CSRF token.
        if method not in SAFE and user.session_id:
            return await self._check_csrf(user, headers, receive)
        return receive

    def _find_user(self, scope: Scope, headers: Headers, path: str) -> User | None:
        """Find the user by token, else by cookie. Raises `HttpProblem` for an invalid token."""
        access = self._access
        # Before the token: proxies can forward the token of their own sign-in as `Authorization`.
        if not access.is_protocol(path) and (user := _find_proxy_user(access.proxy, headers)) is not None:
            return user
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            user = access.users.find(token.strip())
            if user is None:
                # Count failures only: this slows down guessing, not users.
                if wait := access.failures.take(_get_address(scope)):
                    raise _TooMany(wait)
                raise HttpProblem(401, "token_refused", "The token is not valid on this server", hint=_TOKEN_HINT)
            return user
        if access.is_protocol(path):
            return None
        cookie = Request(scope).cookies.get(access.cookie, "")
        return access.sessions.read(cookie, now=access.clock.now()) if cookie else None

    def _ask_to_sign_in(self, headers: Headers, path: str, method: str) -> Exception:
        if method in SAFE and is_page_request(path, headers.get("accept", "")):
            return _Redirect(f"{LOGIN_PATH}?next={quote(path, safe='/')}")
        return HttpProblem(401, "token_missing", "The request has no token", hint=_TOKEN_HINT)

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
        # Rounded up: a client that comes back too early is refused again.
        self.seconds = max(1, round(seconds + 0.5))


def _find_proxy_user(proxy: ProxyUsers | None, headers: Headers) -> User | None:
    """Find the user that the proxy signed in. Raises `HttpProblem` for one without a role."""
    name = headers.get(PROXY_USER_HEADER, "").strip()
    if proxy is None or not name or not proxy.is_proxy(headers.get(PROXY_SECRET_HEADER, "")):
        return None
    user = proxy.find(name, headers.get(PROXY_GROUPS_HEADER, ""))
    if user is None:
        raise HttpProblem(
            403,
            "role_missing",
            f"No group of user {name[:80]!r} has a role",
            hint="Map one of the user's groups to a role in server.proxy_roles",
        )
    return user


def _check_site(headers: Headers, method: str, allowed: frozenset[str]) -> None:
    """Reject requests from pages of other sites, except links that open a page. Raises `HttpProblem`."""
    is_page = method in SAFE and headers.get("sec-fetch-mode", "navigate") == "navigate"
    is_stream = "text/event-stream" in headers.get("accept", "")
    # Browsers send `Origin` with scripts and forms, not when a user follows a link. Programs send neither header, and
    # browsers omit `Sec-Fetch-Site` on plain HTTP to other machines.
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    # `same-site` is foreign too: it ignores the port, so a page of any other server on this machine would count as
    # ours.
    is_foreign = (origin is not None and not is_allowed_origin(origin, allowed)) or site in ("cross-site", "same-site")
    if is_foreign and (not is_page or is_stream or origin is not None):
        raise HttpProblem(403, "foreign_origin", "The request comes from a page of another site")


def _check_role(user: User, min_role: Role) -> None:
    if not user.may(min_role):
        raise HttpProblem(
            403,
            "role_too_low",
            f"User {user.name!r} is {_article(user.role)}, and this needs {_article(min_role)}",
            hint="Ask an operator",
        )


def _article(role: Role) -> str:
    return f"an {role}" if role[0] in "ao" else f"a {role}"


def _bounded(receive: Receive, headers: Headers, *, limit: int) -> Receive:
    """Return a `receive` that limits the body. Raises `HttpProblem` at once if its declared length is too long."""
    # Chunked requests declare no length, so the bytes are counted in any case.
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise _build_too_long(limit)
    read = 0

    async def receive_bounded() -> Message:
        nonlocal read
        message = await receive()
        if message["type"] == "http.request":
            read += len(message.get("body", b""))
            if read > limit:
                # Starlette's form parser passes this exception on; others it reports as an invalid body.
                raise HTTPException(413, _build_too_long(limit).message)
        return message

    return receive_bounded


def _build_too_long(limit: int) -> HttpProblem:
    return HttpProblem(413, "body_too_long", f"The body is longer than {limit} bytes", hint="Send less at a time")


async def _read_body(receive: Receive) -> bytes:
    """Read a whole form, whose length `_bounded` limits."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(pieces)
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def _replay(body: bytes, receive: Receive) -> Receive:
    is_sent = False

    async def receive_again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
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
    """Build the default headers. A response can override them, as downloads do."""
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
        # htmx inserts HTML through a policy of this name; all other uses of innerHTML fail.
        "trusted-types htmx",
        "require-trusted-types-for 'script'",
    )
    return {
        "content-security-policy": "; ".join(policy),
        # Browsers must not guess a type: text of a run could become a script.
        "x-content-type-options": "nosniff",
        # For browsers that don't know `frame-ancestors`.
        "x-frame-options": "DENY",
        # Not `no-referrer`: browsers would then send `Origin: null` with our own forms, and they would be rejected.
        "referrer-policy": "same-origin",
        # A page of another site that opens this one gets no reference to its window.
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        # Responses show data of runs, which must not stay on the disk of a shared computer.
        "cache-control": "no-store",
    }


def _enter(scope: Scope, root: str) -> Scope:
    """Return the scope with the root path in front, whether or not the reverse proxy removed it."""
    if not root:
        return scope
    path = str(scope["path"])
    has_root = path == root or path.startswith(f"{root}/")
    return {**scope, "root_path": root, "path": path if has_root else f"{root}{path}"}


def _get_path(scope: Scope) -> str:
    """Return the path without the root path."""
    root, path = str(scope.get("root_path", "")), str(scope["path"])
    return path.removeprefix(root) if root and path.startswith(root) else path


def _get_address(scope: Scope) -> str:
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else "unknown"
