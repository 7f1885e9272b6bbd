"""`/login` and `/logout`: exchange a one-time code or a token for a session cookie."""

from html import escape
from typing import Annotated

from fastapi import APIRouter, FastAPI, Form, Query, Request
from starlette.responses import RedirectResponse, Response

from metier.server.plain_page import render_plain_page
from metier.server.problems import HttpProblem
from metier.server.state import ServerState, State, get_nonce
from metier.server.users import User

router = APIRouter(include_in_schema=False)

_FORM = """{wrong}<form method="post" action="{base}/login"><input type="hidden" name="next" value="{next}">
<div class="field"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus></div>
<button class="primary">Sign in</button></form>
<p class="hint">The token is in the file that <code>agent serve</code> printed when it started.</p>"""


def mount(app: FastAPI, state: ServerState) -> None:
    app.include_router(router)
    state.access.allow_writes("/logout", "viewer")


@router.get("/login")
async def show_login(
    request: Request,
    state: State,
    code: Annotated[str, Query(max_length=100)] = "",
    following: Annotated[str, Query(alias="next", max_length=2000)] = "",
) -> Response:
    """Sign in with the one-time code of the URL, or show the form for a token."""
    if not code:
        return _render(request, state, following=following)
    user = state.codes.redeem(code)
    if user is None:
        _count_failure(request, state)
        return _render(request, state, following=following, wrong="This link was already used or has expired.")
    return _sign_in(request, state, user, following)


@router.post("/login")
async def sign_in(
    request: Request,
    state: State,
    token: Annotated[str, Form(max_length=500)],
    following: Annotated[str, Form(alias="next", max_length=2000)] = "",
) -> Response:
    user = state.access.users.find(token.strip())
    if user is None:
        _count_failure(request, state)
        return _render(request, state, following=following, wrong="This token is not valid on this server.")
    return _sign_in(request, state, user, following)


@router.post("/logout")
async def sign_out(state: State) -> Response:
    response = RedirectResponse(f"{state.base_path}/login", status_code=303)
    response.delete_cookie(state.access.cookie, path=state.base_path or "/")
    return response


def _sign_in(request: Request, state: ServerState, user: User, following: str) -> Response:
    # 303: the browser opens the page by GET, so that reloading it does not send the token again.
    response = RedirectResponse(f"{state.base_path}{_check_path(following)}", status_code=303)
    response.set_cookie(
        state.access.cookie,
        state.access.sessions.issue(user, now=state.host.clock.now()),
        max_age=int(state.options.session_hours * 3600),
        path=state.base_path or "/",
        # Not always: on loopback the console is served without TLS.
        secure=request.url.scheme == "https",
        httponly=True,
        # A link from another site opens the console signed out, but no other site can use the session.
        samesite="strict",
    )
    return response


def _check_path(following: str) -> str:
    """Return the path if it belongs to this server, else `/`. Browsers read `//host` and `/\\host` as other sites."""
    # Printable, because browsers drop tabs and line ends from addresses: `/<tab>/host` would become `//host`.
    is_own = following.startswith("/") and not following.startswith(("//", "/\\")) and following.isprintable()
    return following if is_own else "/"


def _count_failure(request: Request, state: ServerState) -> None:
    """Count a failed attempt. Raises `HttpProblem` after too many from one address."""
    if state.access.failures.take(request.client.host if request.client else "unknown"):
        raise HttpProblem(429, "too_many_requests", "Too many attempts to sign in", hint="Wait a minute")


def _render(request: Request, state: ServerState, *, following: str, wrong: str = "") -> Response:
    form = _FORM.format(
        base=escape(state.base_path),
        next=escape(_check_path(following)),
        wrong=f'<p class="notice bad" role="alert">{wrong}</p>\n' if wrong else "",
    )
    return render_plain_page(
        "Sign in", form, nonce=get_nonce(request), base=state.base_path, status=401 if wrong else 200
    )
