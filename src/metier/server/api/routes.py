"""The HTTP API under `/api/v1`."""

from typing import Any

from fastapi import FastAPI

from metier.server.api import approvals, conversations, cost, definitions, health, runs, schedules
from metier.server.problems import ProblemDocument
from metier.server.state import ServerState

PREFIX = "/api/v1"
FAILURES: dict[int | str, dict[str, object]] = {
    status: {"model": ProblemDocument, "description": text}
    for status, text in (
        (400, "Invalid request."),
        (401, "Missing or invalid token."),
        (403, "The user lacks the permission, or the request comes from another site."),
        (404, "Not found."),
        (409, "Conflict: already decided, driven by another process, or changed."),
        (413, "The body is too large."),
        (421, "The host name is not allowed."),
        (422, "The request doesn't match the schema."),
        (429, "Too many requests."),
        (503, "The store or the model is unavailable."),
    )
}


def mount(app: FastAPI, state: ServerState) -> None:
    for module in (health, runs, approvals, definitions, conversations, schedules, cost):
        # Not through a common router: FastAPI would build each route twice.
        app.include_router(module.router, prefix=PREFIX, responses={**FAILURES})
    state.access.allow_writes(rf"{PREFIX}/approvals/[^/]+/(approve|deny)", "approver")
    state.access.allow_writes(rf"{PREFIX}/runs/[^/]+/(answer|resume)", "approver")


def describe_security(app: FastAPI, *, cookie: str) -> None:
    """Add the security schemes to the OpenAPI document. `/health` needs none."""
    build = app.openapi

    def build_with_security() -> dict[str, Any]:
        document = build()  # FastAPI builds it once and returns the same object from then on
        document.setdefault("components", {})["securitySchemes"] = {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of the server or of one of its users.",
            },
            "session": {"type": "apiKey", "in": "cookie", "name": cookie, "description": "The cookie of a browser."},
        }
        document["security"] = [{"token": []}, {"session": []}]
        document["paths"][f"{PREFIX}/health"]["get"]["security"] = []
        return document

    app.openapi = build_with_security
