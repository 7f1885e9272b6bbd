"""Request and response bodies: documents without secrets, pages of them, and downloads."""

from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import Query
from pydantic import ConfigDict, Field, JsonValue
from starlette.responses import JSONResponse, Response

from metier.server.idempotency import Document
from metier.server.state import ServerState
from metier.telemetry.redaction import Json
from metier.values import Value

type Cursor = Annotated[int, Query(ge=0, le=2**62, description="`next` of the previous page.")]
type PageSize = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]

_DOWNLOAD_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"


class Body(Value):
    """A request or response body. Built when its class is defined, because FastAPI reads the schema at once."""

    model_config = ConfigDict(defer_build=False)


class Listing(Body):
    """A page of a list."""

    items: tuple[dict[str, JsonValue], ...]
    next: Annotated[int, Field(description="The `cursor` of the next page; 0 on the last page.")] = 0


def answer(state: ServerState, document: Document, *, status: int = 200) -> Response:
    """Return the document as JSON, without the host's secrets."""
    clean = state.redactor.redact_value(cast("Json", document))  # JSON values either way
    return JSONResponse(cast("Any", clean), status_code=status)


def answer_page(state: ServerState, items: list[Document], *, following: int = 0) -> Response:
    return answer(state, {"items": cast("JsonValue", items), "next": following})


def answer_file(data: bytes, *, name: str) -> Response:
    """Return a download. Its headers keep browsers from rendering it, because it can contain hostile HTML."""
    plain = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-._") else "_" for mark in name)
    return Response(
        data,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
            "content-security-policy": _DOWNLOAD_POLICY,
        },
    )
