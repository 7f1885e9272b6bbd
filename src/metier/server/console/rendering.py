"""Common parts of the console's pages: frame, user, and errors."""

import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast, override

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from jinja2 import Environment
from msgspec import Struct
from pydantic import JsonValue
from starlette.datastructures import FormData
from starlette.responses import HTMLResponse, RedirectResponse

from metier.errors import MetierError, UsageError
from metier.runtime.inbox import count_waiting
from metier.server.problems import ProblemDocument, describe_problem
from metier.server.state import ServerState, get_csrf_token, get_nonce, get_state, get_user
from metier.server.users import User
from metier.telemetry.redaction import Redactor
from metier.views.page_rendering import build_environment

TEMPLATES = Path(__file__).parent / "templates"
logger = logging.getLogger("metier.server")

_SECTIONS = {
    "Work": ("inbox", "chat", "tasks", "schedules"),
    "History": ("runs", "cost", "latency", "evals", "audit"),
    "Workspace": ("skills", "policy", "health"),
}
NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = tuple(
    (section, tuple((name, "/" if name == "inbox" else f"/{name}", name.capitalize()) for name in names))
    for section, names in _SECTIONS.items()
)
"""Sections with the name, path and title of each page."""

DONE: Mapping[str, str] = {
    "approved": "Approved. The run continues.",
    "denied": "Denied. The model reads the reason and the run continues.",
    "decided": "All marked approvals are decided.",
    "answered": "Answered. The run continues.",
    "raised": "The limit is raised. The run continues.",
    "resumed": "The run continues.",
    "canceled": "The run is being canceled.",
    "forked": "This is the new run. It shares the entries before the fork and continues from there.",
    "saved": "Saved. The rules apply to new runs.",
    "updated": "The skill is updated. Active runs keep the version that they started with.",
    "scheduled": "The schedule is added.",
    "unscheduled": "The schedule is removed. Its runs stay.",
    "bulk_cancel": "The runs are being canceled.",
    "bulk_retry": "The new runs are queued.",
    "undone": "The files are restored.",
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
        """Return whether htmx asks for a part of an open page."""
        return self.request.headers.get("hx-request") == "true"

    async def render(self, template: str, here: str, *, status: int = 200, **values: object) -> Response:
        """Render a template: a whole page, or a part of one for htmx."""
        shared = {
            "root": self.root,
            "here": here,
            "user": self.user,
            "nonce": get_nonce(self.request),
            "csrf": get_csrf_token(self.request),
            "now": self.state.host.clock.now(),
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
        """Redirect after a form, so that reloading the page doesn't submit it again."""
        return RedirectResponse(f"{self.root}{path}", status_code=303)

    async def read_form(self) -> dict[str, str]:
        """Read the fields of a form; of repeated ones the last."""
        # No files: they would be spooled to disk before a route could reject them.
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
    """A route whose errors are rendered as pages, with the message and hint of the command line."""

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


def parse_object(text: str, *, what: str, example: str) -> dict[str, JsonValue]:
    """Parse a JSON object that a user typed. Raises `UsageError`."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The {what} are not JSON", hint=f"Write {example}") from error
    if not isinstance(value, dict):
        raise UsageError(f"The {what} must be one JSON object", hint=f"Write {example}")
    return value


def build_console_environment(redactor: Redactor) -> Environment:
    """Build the Jinja environment. Its filters redact all outside text."""
    environment = build_environment([TEMPLATES], clean=redactor.redact)
    cast("dict[str, Callable[..., object]]", environment.filters)["ago"] = format_ago
    return environment


def format_ago(moment: datetime, now: datetime) -> str:
    """Format a relative time. `console.js` has the same rules and keeps open pages up to date."""
    seconds = (now - moment).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h ago"
    if seconds < 30 * 86400:
        return f"{seconds // 86400:.0f} d ago"
    return f"{moment:%Y-%m-%d}"
