"""Whole requests and replies in `llm/` of the run folder, for debugging. Only where the settings ask for them."""

import functools
import json

from pydantic import JsonValue, TypeAdapter

from metier.engine.actions import CallModel
from metier.engine.services import Services
from metier.messages import ModelReply
from metier.providers.base import ModelRequest

FOLDER = "llm"


@functools.cache
def _adapt_requests() -> TypeAdapter[ModelRequest]:
    return TypeAdapter(ModelRequest)


def dump_request(request: ModelRequest) -> JsonValue:
    """Everything but the bytes of pictures, which its messages name by their hash."""
    dumped: JsonValue = _adapt_requests().dump_python(request, mode="json", exclude={"media"})
    return dumped


def keep_request(action: CallModel, request: ModelRequest, services: Services) -> None:
    if services.clean_body is not None:
        _keep(_name(action, "request"), dump_request(request), services)


def keep_reply(action: CallModel, reply: ModelReply, services: Services) -> None:
    if services.clean_body is not None:
        _keep(_name(action, "reply"), reply.model_dump(mode="json"), services)


def _name(action: CallModel, kind: str) -> str:
    """The second request of one turn has a name of its own."""
    return f"turn-{action.turn}{'-repair' if action.repair else ''}.{kind}.json"


def _keep(name: str, body: JsonValue, services: Services) -> None:
    """Redacted like everything that is written for people."""
    assert services.clean_body is not None
    folder = services.run_folder / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(services.clean_body(body), ensure_ascii=False, indent=2) + "\n"
    (folder / name).write_text(text, encoding="utf-8", errors="replace")
