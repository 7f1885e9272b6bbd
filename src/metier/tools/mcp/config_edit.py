"""Add a server to a file of servers, or take one out. Other servers and keys of the file stay as they are. Pure."""

import json
from collections.abc import Mapping
from typing import cast

from pydantic import JsonValue

from metier.errors import UsageError
from metier.tools.mcp.config import ROOT_KEY


def add_server(text: str, name: str, server: Mapping[str, JsonValue], *, replaces: bool = False) -> str:
    """The text of the file with the server. Raises `UsageError` where there is one of that name and none is wanted."""
    root, servers = _read(text)
    if name in servers and not replaces:
        raise UsageError(f"There is an MCP server {name!r} already", hint="Add --replace to put this one in its place")
    servers[name] = dict(server)
    return _write(root, servers)


def remove_server(text: str, name: str) -> str | None:
    """The text without the server; None where it has none of that name."""
    root, servers = _read(text)
    if name not in servers:
        return None
    del servers[name]
    return _write(root, servers)


def _read(text: str) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """The file was checked before it is changed: it is an object of objects, or empty."""
    root = cast("dict[str, JsonValue]", json.loads(text)) if text.strip() else {}
    servers = root.get(ROOT_KEY)
    return root, dict(servers) if isinstance(servers, dict) else {}


def _write(root: dict[str, JsonValue], servers: dict[str, JsonValue]) -> str:
    return json.dumps({**root, ROOT_KEY: servers}, indent=2, ensure_ascii=False) + "\n"
