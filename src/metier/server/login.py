"""`/login` and `/logout`: exchange a one-time code or a token for a cookie."""

from typing import Annotated

from fastapi import APIRouter, FastAPI, Form, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from metier.server.problems import HttpProblem
from metier.server.security.users import User
from metier.server.state import ServerState, State, get_nonce

router = APIRouter(include_in_schema=False)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Metier</title>
<style nonce="{nonce}">
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto; padding: 0 1rem }}
label, input, button {{ display: block; width: 100%; box-sizing: border-box; font: inherit }}
input, button {{ margin: .5rem 0 1rem; padding: .6rem; min-height: 2.75rem }}
.wrong {{ color: #b00020 }} @media (prefers-color-scheme: dark) {{ .wrong {{ color: #ff8a80 }} }}
</style></head><body><main><h1>Sign in</h1>{wrong}
<form method="post" action="{base}/login"><input type="hidden" name="next" value="{next}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button></form>
<p>The token is in the file that <code>agent serve</code> named when it started.</p></main></body></html>
"""


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
    """With a code, which works once: sign in. Without: ask for the token."""
    if not code:
        return _render(request, state, following=following)
    user = state.codes.redeem(code)
    if user is None:
        _count_failure(request, state)
        return _render(request, state, following=following, wrong="This link was used already, or is too old.")
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
        return _render(request, state, following=following, wrong="This token is not one of this server.")
    return _sign_in(request, state, user, following)


@router.post("/logout")
async def sign_out(state: State) -> Response:
    response = RedirectResponse(f"{state.base_path}/login", status_code=303)
    response.delete_cookie(state.access.cookie, path=state.base_path or "/")
    return response


def _sign_in(request: Request, state: ServerState, user: User, following: str) -> Response:
    response = RedirectResponse(f"{state.base_path}{_check_path(following)}", status_code=303)
    response.set_cookie(
        state.access.cookie,
        state.access.sessions.issue(user, now=state.host.clock.now()),
        max_age=int(state.options.session_hours * 3600),
        path=state.base_path or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _check_path(following: str) -> str:
    """Only a path of this server: `//host` and `/\\host` lead elsewhere."""
    is_own = following.startswith("/") and not following.startswith(("//", "/\\")) and following.isprintable()
    return following if is_own else "/"


def _count_failure(request: Request, state: ServerState) -> None:
    """Raises `HttpProblem` where too many came from one address."""
    if state.access.failures.take(request.client.host if request.client else "unknown"):
        raise HttpProblem(429, "too_many_requests", "Too many attempts to sign in", hint="Wait a minute")


def _render(request: Request, state: ServerState, *, following: str, wrong: str = "") -> Response:
    page = _PAGE.format(
        nonce=get_nonce(request),
        base=state.base_path,
        next=_escape(_check_path(following)),
        wrong=f'<p class="wrong" role="alert">{wrong}</p>' if wrong else "",
    )
    return HTMLResponse(page, status_code=401 if wrong else 200)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
