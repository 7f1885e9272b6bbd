"""The HTTP API under `/api/v1`."""

from typing import Any

from fastapi import FastAPI

from metier.server.api import approvals, conversations, definitions, monitoring, runs, schedules
from metier.server.api.bodies import COMPONENTS, build_view_schemas
from metier.server.problems import MEDIA_TYPE, ProblemDocument
from metier.server.state import ServerState

PREFIX = "/api/v1"
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": f"{COMPONENTS}{ProblemDocument.__name__}"}}}
FAILURES: dict[int | str, dict[str, object]] = {
    status: {"description": text, "content": _PROBLEM}
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
        (500, "Unexpected error of the server."),
        (502, "The model provider failed."),
        (503, "The store or the model is unavailable."),
        (507, "The disk of the store is full."),
    )
}


def mount(app: FastAPI, state: ServerState) -> None:
    for module in (monitoring, runs, approvals, definitions, conversations, schedules):
        # Not through a common router: FastAPI would build each route twice.
        app.include_router(module.router, prefix=PREFIX, responses={**FAILURES})
    state.access.allow_writes(rf"{PREFIX}/approvals/[^/]+/(approve|deny)", "approver")
    state.access.allow_writes(rf"{PREFIX}/runs/[^/]+/(answer|resume)", "approver")


def complete_document(app: FastAPI, *, cookie: str) -> None:
    """Add the security schemes to the OpenAPI document, and the schemas of bodies that FastAPI doesn't know."""
    build = app.openapi

    def build_complete() -> dict[str, Any]:
        document = build()  # FastAPI builds it once and returns the same object from then on
        components = document["components"]
        added = {**build_view_schemas(), ProblemDocument.__name__: ProblemDocument.model_json_schema()}
        components["schemas"] = {**added, **components["schemas"]}
        components["securitySchemes"] = {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of the server or of one of its users.",
            },
            "session": {"type": "apiKey", "in": "cookie", "name": cookie, "description": "The cookie of a browser."},
        }
        document["security"] = [{"token": []}, {"session": []}]
        document["paths"][f"{PREFIX}/health"]["get"]["security"] = []  # needs no token
        return document

    app.openapi = build_complete
