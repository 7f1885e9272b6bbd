"""Common parts of the console's pages: frame, user, and errors."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, cast, override

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from jinja2 import Environment
from msgspec import Struct
from starlette.datastructures import FormData
from starlette.responses import HTMLResponse, RedirectResponse

from metier.errors import MetierError
from metier.runtime.inbox import count_waiting
from metier.server.problems import ProblemDocument, describe_problem
from metier.server.security.users import User
from metier.server.state import ServerState, get_csrf_token, get_nonce, get_state, get_user
from metier.telemetry.redaction import Redactor
from metier.views.page.environment import build_environment

TEMPLATES = Path(__file__).parent / "templates"
logger = logging.getLogger("metier.server")

NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Work",
        (
            ("inbox", "/", "Inbox"),
            ("chat", "/chat", "Chat"),
            ("tasks", "/tasks", "Tasks"),
            ("schedules", "/schedules", "Schedules"),
        ),
    ),
    ("History", (("runs", "/runs", "Runs"), ("cost", "/cost", "Cost"), ("evals", "/evals", "Evals"))),
    (
        "Workspace",
        (
            ("skills", "/skills", "Skills"),
            ("policy", "/policy", "Policy"),
            ("health", "/health", "Health"),
        ),
    ),
)

DONE: Mapping[str, str] = {
    "approved": "Approved. The run goes on.",
    "denied": "Denied. The model reads the reason and the run goes on.",
    "decided": "All decided.",
    "answered": "Answered. The run goes on.",
    "raised": "The limit is raised. The run goes on.",
    "resumed": "The run goes on.",
    "canceled": "The run is being ended.",
    "forked": "This is the new run. It shares the entries before the fork and goes on from there.",
    "saved": "Saved. New runs are judged by these rules.",
    "updated": "The skill is updated. Runs that are under way keep what they are pinned to.",
    "undone": "The files are as they were before.",
}
"""Confirmations of a page by code, so that an address can't inject text into the page."""


class Page(Struct, frozen=True, kw_only=True):
    """One request for a page."""

    request: Request
    state: ServerState
    user: User
    environment: Environment

    @property
    def root(self) -> str:
        return self.state.base_path

    @property
    def is_part(self) -> bool:
        """A page that is open asks for a piece of itself."""
        return self.request.headers.get("hx-request") == "true"

    async def render(self, template: str, here: str, *, status: int = 200, **values: object) -> Response:
        """A whole page; a fragment where htmx asks for one by its template."""
        shared = {
            "root": self.root,
            "here": here,
            "user": self.user,
            "nonce": get_nonce(self.request),
            "csrf": get_csrf_token(self.request),
            "navigation": NAVIGATION,
            "waiting_count": await count_waiting(self.state.runtime),
            "workspace": self.state.host.workspace.name,
            "done": DONE.get(self.request.query_params.get("done", ""), ""),
            "can_decide": self.user.may("approver"),
            "can_operate": self.user.may("operator"),
            "can_edit": self.user.has("edit"),
            "can_raise": self.user.has("limits"),
            "can_accept_code": self.user.has("code"),
        }
        page = self.environment.get_template(template)
        return HTMLResponse(page.render(**shared, **values), status_code=status)

    def go(self, path: str) -> Response:
        """After a form: show another page, so that loading it again sends nothing again."""
        return RedirectResponse(f"{self.root}{path}", status_code=303)

    async def read_form(self) -> dict[str, str]:
        """The fields of a form, each once."""
        form: FormData = await self.request.form(max_files=0, max_fields=500)
        return {name: value for name, value in form.multi_items() if isinstance(value, str)}

    async def read_list(self, name: str) -> list[str]:
        form: FormData = await self.request.form(max_files=0, max_fields=500)
        return [value for value in form.getlist(name) if isinstance(value, str)]


def get_page(request: Request) -> Page:
    environment = cast("Environment", request.app.state.console)  # put there by `mount`
    return Page(request=request, state=get_state(request), user=get_user(request), environment=environment)


type Here = Annotated[Page, Depends(get_page)]


class PageRoute(APIRoute):
    """A route whose failures are pages too, with the sentence and the hint of the command line."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_as_page(request: Request) -> Response:
            try:
                return await answer(request)
            except MetierError as error:
                return await render_error(request, describe_problem(error, get_state(request).redactor))

        return answer_as_page


async def render_error(request: Request, problem: ProblemDocument) -> Response:
    """Render an error within the frame of the console."""
    return await get_page(request).render("error.html", "", status=problem.status, problem=problem)


def build_console_environment(redactor: Redactor) -> Environment:
    """Every text from outside passes one of its filters, and so the redactor."""
    return build_environment([TEMPLATES], clean=redactor.redact)
