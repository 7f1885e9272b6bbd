"""Request and response bodies: documents without secrets, pages of them, and downloads."""

from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import Query
from pydantic import ConfigDict, JsonValue
from starlette.responses import JSONResponse, Response

from metier.server.idempotency import Document
from metier.server.state import ServerState
from metier.telemetry.redaction import Json
from metier.values import Value

type Cursor = Annotated[int, Query(ge=0, le=2**62, description="`next` of the previous page.")]
type PageSize = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]

_DOWNLOAD_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"


class Body(Value):
    """A request body. Built when its class is defined, because FastAPI reads the schema at once."""

    model_config = ConfigDict(defer_build=False)


class Download(Response):
    """A file. Its headers keep browsers from rendering it, because it can contain hostile HTML."""

    media_type = "application/octet-stream"


DOWNLOAD: dict[str, Any] = {"content": {Download.media_type: {"schema": {"type": "string", "format": "binary"}}}}
"""A response in the OpenAPI document."""


def answer(state: ServerState, document: Document, *, status: int = 200) -> Response:
    """Return the document as JSON, without the host's secrets."""
    clean = state.redactor.redact_value(cast("Json", document))  # JSON values either way
    return JSONResponse(cast("Any", clean), status_code=status)


def answer_page(state: ServerState, items: list[Document], *, following: int = 0) -> Response:
    return answer(state, {"items": cast("JsonValue", items), "next": following})


def answer_file(data: bytes, *, name: str) -> Response:
    plain = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-._") else "_" for mark in name)
    # Both forms of RFC 6266: clients that do not know `filename*` use the plain one.
    return Download(
        data,
        headers={
            "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
            "content-security-policy": _DOWNLOAD_POLICY,
        },
    )
