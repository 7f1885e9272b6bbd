"""The tools that an MCP server offers: named, bounded, redacted and comparable. Opens no connection."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from msgspec import Struct
from pydantic import JsonValue

from metier.errors import UsageError
from metier.tools.base import Schema, ToolInfo
from metier.tools.effects import Effect, Risk
from metier.tools.schemas import SchemaCheck

MAX_TOOLS = 256
MAX_DESCRIPTION_CHARACTERS = 4_000
MAX_SCHEMA_CHARACTERS = 64_000
MAX_LISTING_CHARACTERS = 1_000_000
"""Limit for all schemas of one server; checking this much takes a few seconds."""
ID_PREFIX = "mcp:"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)

type Clean = Callable[[str], str]
type Difference = Literal["changed", "added", "removed"]


class OfferedTool(Struct, frozen=True, kw_only=True):
    """One entry of `tools/list`."""

    name: str
    description: str
    input_schema: dict[str, JsonValue]
    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False


class Listing(Struct, frozen=True):
    """The usable tools of one server, and the reasons why others are left out."""

    tools: tuple[ToolInfo, ...] = ()
    refused: tuple[str, ...] = ()
    """One sentence for each tool that is left out."""


def build_listing(server: str, offered: Sequence[OfferedTool], *, clean: Clean) -> Listing:
    """Build the tools of a server. Names, descriptions and schemas are untrusted, so they are redacted and checked."""
    tools: dict[str, ToolInfo] = {}
    refused: list[str] = []
    if len(offered) > MAX_TOOLS:
        refused.append(f"{len(offered) - MAX_TOOLS} of {len(offered)} tools are left out: {MAX_TOOLS} are the most")
    room = MAX_LISTING_CHARACTERS
    for each in offered[:MAX_TOOLS]:
        problem, size = _get_problem(server, each, tools, room=room)
        if problem:
            refused.append(clean(problem))
        else:
            info = _build_info(server, each, clean)
            tools[info.name] = info
            room -= size
    return Listing(tuple(sorted(tools.values(), key=lambda info: info.name)), tuple(refused))


def get_server(info: ToolInfo) -> str:
    """Return the server of a tool; empty for a tool of another kind."""
    return info.name.partition("/")[0] if info.id.startswith(ID_PREFIX) else ""


def mark_claims(infos: Iterable[ToolInfo], *, is_trusted: bool) -> tuple[ToolInfo, ...]:
    """Return the tools with their server's claims about risk and effect trusted or not."""
    return tuple(replace(info, is_claim=not is_trusted) for info in infos)


def compare_listings(known: Iterable[ToolInfo], found: Iterable[ToolInfo]) -> dict[str, Difference]:
    """Return the differences by name of the tool; empty if nothing changed."""
    # Without the trust mark: a setting of the user must not look like a change by the server.
    before = {info.name: info for info in mark_claims(known, is_trusted=False)}
    after = {info.name: info for info in mark_claims(found, is_trusted=False)}
    differences: dict[str, Difference] = {}
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            differences[name] = "removed"
        elif name not in before:
            differences[name] = "added"
        elif before[name] != after[name]:
            differences[name] = "changed"
    return differences


def _judge(tool: OfferedTool) -> tuple[Risk, Effect]:
    """Derive risk and effect from the annotations. The protocol requires to assume the worst without them."""
    if tool.read_only:
        return "low", "read"
    return "high" if tool.destructive else "medium", "idempotent" if tool.idempotent else "opaque"


def _get_problem(server: str, tool: OfferedTool, known: Mapping[str, ToolInfo], *, room: int) -> tuple[str, int]:
    """Return why a tool cannot be used, or an empty string, and the size of its schema in characters."""
    if not _NAME.fullmatch(tool.name):
        return f"Tool {tool.name[:80]!r} is left out: its name has more than letters, digits, '_', '-' and '.'", 0
    name = f"{server}/{tool.name}"
    if name in known:
        return f"A second tool {name!r} is left out", 0
    try:
        size = len(json.dumps(tool.input_schema))
        if size > MAX_SCHEMA_CHARACTERS:
            most = f"{MAX_SCHEMA_CHARACTERS} are the most"
            return f"Tool {name!r} is left out: its schema has {size} characters, {most}", size
        if size > room:
            most = f"{MAX_LISTING_CHARACTERS} are the most"
            return f"Tool {name!r} is left out: the schemas of its server have too many characters, {most}", size
        # Built for its errors only: it raises for an invalid schema.
        SchemaCheck(name, tool.input_schema)
    except (UsageError, RecursionError, ValueError) as error:
        return f"Tool {name!r} is left out: its schema is not valid ({str(error)[:300]})", 0
    return "", size


def _build_info(server: str, tool: OfferedTool, clean: Clean) -> ToolInfo:
    name = f"{server}/{tool.name}"
    risk, effect = _judge(tool)
    description = clean(tool.description).strip()
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        description = f"{description[:MAX_DESCRIPTION_CHARACTERS]}…"
    return ToolInfo(
        id=f"{ID_PREFIX}{name}",
        name=name,
        description=description,
        category="custom",
        input_schema=_clean_schema(tool.input_schema, clean),
        risk=risk,
        effect=effect,
        spools=True,
        is_claim=True,
    )


def _clean_schema(schema: Schema, clean: Clean) -> Schema:
    """Redact the texts for the model. Names and values stay unchanged, because calls must match them."""
    cleaned = _clean_node(schema, clean)
    assert isinstance(cleaned, dict)
    # Some servers omit the type, and model providers reject such a schema.
    return {"type": "object", **cleaned}


def _clean_node(node: JsonValue, clean: Clean) -> JsonValue:
    match node:
        case dict():
            return {
                key: clean(value) if key in _PROSE and isinstance(value, str) else _clean_node(value, clean)
                for key, value in node.items()
            }
        case list():
            return [_clean_node(item, clean) for item in node]
        case _:
            return node


_PROSE = frozenset({"description", "title", "$comment"})
