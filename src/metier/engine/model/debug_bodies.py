"""Whole requests and replies in `llm/` of the run folder, for debugging. Only if the settings ask for them."""

import dataclasses
import json

from pydantic import JsonValue

from metier.engine.actions import CallModel
from metier.engine.services import Services
from metier.messages import ModelReply
from metier.providers.base import ModelRequest
from metier.values import dump_fields, dump_value

FOLDER = "llm"


def dump_request(request: ModelRequest) -> JsonValue:
    """Dump everything except the bytes of pictures, which messages name by their hash."""
    names = [each.name for each in dataclasses.fields(request) if each.name != "media"]
    return {name: dump_value(getattr(request, name)) for name in names}


def keep_request(action: CallModel, request: ModelRequest, services: Services) -> None:
    if services.redact_body is not None:
        _keep(_name(action, "request"), dump_request(request), services)


def keep_reply(action: CallModel, reply: ModelReply, services: Services) -> None:
    if services.redact_body is not None:
        _keep(_name(action, "reply"), dump_fields(reply), services)


def _name(action: CallModel, kind: str) -> str:
    """Name the file; a second request of one turn has its own name."""
    return f"turn-{action.turn}{'-repair' if action.repair else ''}.{kind}.json"


def _keep(name: str, body: JsonValue, services: Services) -> None:
    """Write the file, redacted like everything for people."""
    assert services.redact_body is not None
    folder = services.run_folder / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(services.redact_body(body), ensure_ascii=False, indent=2) + "\n"
    (folder / name).write_text(text, encoding="utf-8", errors="replace")
