"""Instructions and tool descriptions for models, read from Markdown files."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from pydantic import JsonValue

_FOLDER = Path(__file__).parent


@cache
def load_text(name: str) -> str:
    """Read a text. `name` is its path in this folder, without the extension. Raises `FileNotFoundError`."""
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8").strip()


type Schema = dict[str, JsonValue]

_PARAMETERS = "\n## Parameters\n"
_BULLET = re.compile(r"^- ([a-z_.]+): (.+)$", re.MULTILINE)


class ToolText(NamedTuple):
    description: str
    parameters: dict[str, str]


@cache
def load_tool_text(name: str) -> ToolText:
    """Return the text of a tool. Raises `FileNotFoundError` if there is none."""
    description, _, bullets = load_text(f"tools/{name}").partition(_PARAMETERS)
    return ToolText(description.strip(), dict(_BULLET.findall(bullets)))


def describe_parameters(name: str, schema: Schema) -> Schema:
    """Return a copy of a tool's schema with the descriptions of its parameters."""
    described = cast("Schema", json.loads(json.dumps(schema)))  # unlike deepcopy, no two parameters share an object
    for path, text in load_tool_text(name).parameters.items():
        parameter = _get_parameter(described, path.split("."))
        parameter["description"] = text
    return described


def build_parameters(name: str, properties: Mapping[str, JsonValue], *, required: tuple[str, ...] = ()) -> Schema:
    """Build the schema of a tool's arguments. A property is a schema, or only the name of its type."""
    schemas: Schema = {key: {"type": each} if isinstance(each, str) else each for key, each in properties.items()}
    schema: Schema = {"type": "object", "properties": schemas}
    # The order of the keys is part of every prompt, and so of the hashes that a replay compares.
    schema |= {"required": list(required)} if required else {}
    return describe_parameters(name, schema | {"additionalProperties": False})


def _get_parameter(schema: Schema, path: list[str]) -> Schema:
    found = cast("Schema", cast("Schema", schema["properties"])[path[0]])
    return found if len(path) == 1 else _get_parameter(cast("Schema", found["items"]), path[1:])
