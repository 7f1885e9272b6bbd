"""The HTTP API under `/api/v1`: which routers it is made of."""

from typing import Any

from fastapi import FastAPI

from metier.server.api import approvals, conversations, cost, definitions, health, runs, schedules
from metier.server.problems import ProblemDocument
from metier.server.state import ServerState

PREFIX = "/api/v1"
FAILURES: dict[int | str, dict[str, object]] = {
    status: {"model": ProblemDocument, "description": text}
    for status, text in (
        (400, "The request is wrong."),
        (401, "No token, or one that is not good."),
        (403, "The user may not do this, or the request comes from another site."),
        (404, "There is no such thing."),
        (409, "It is decided, driven or changed already."),
        (413, "The body is too long."),
        (421, "Another host name."),
        (422, "The request does not have the form of the schema."),
        (429, "Too many requests."),
        (503, "The store or the model cannot be reached."),
    )
}


def mount(app: FastAPI, state: ServerState) -> None:
    for module in (health, runs, approvals, definitions, conversations, schedules, cost):
        # Not by a router between: that one would build all its routes now, and each again at the first request.
        app.include_router(module.router, prefix=PREFIX, responses={**FAILURES})
    state.access.allow_writes(rf"{PREFIX}/approvals/[^/]+/(approve|deny)", "approver")
    state.access.allow_writes(rf"{PREFIX}/runs/[^/]+/(answer|resume)", "approver")


def describe_security(app: FastAPI, *, cookie: str) -> None:
    """Add the ways to sign in to the OpenAPI document. `/health` needs none of them."""
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
