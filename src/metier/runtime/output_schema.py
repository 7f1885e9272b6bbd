"""The schema that the result of a run must have: read it, and refuse what is none before anything is sent."""

import json
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from metier.errors import UsageError
from metier.tools.schemas import SchemaCheck

type Schema = dict[str, JsonValue]

MAX_BYTES = 256_000


def read_output_schema(given: str) -> Schema:
    """A JSON schema written out, or the file that holds one. Raises `UsageError`."""
    text = given if given.lstrip().startswith("{") else _read_file(Path(given))
    try:
        found = cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The output schema is not JSON: {error}", hint="Give a JSON schema, or its file") from error
    return check_output_schema(found)


def check_output_schema(schema: object) -> Schema:
    """The same, where it is a JSON schema that a value can be held against. Raises `UsageError`."""
    if not isinstance(schema, dict):
        raise UsageError("The output schema is not a JSON object", hint='Such as {"type": "object", "properties": …}')
    found = cast("Schema", schema)  # the caller parsed it from JSON
    try:
        SchemaCheck("output_schema", found)
    except (UsageError, TypeError) as error:
        reason = error.message.partition("invalid schema: ")[2] if isinstance(error, UsageError) else str(error)
        raise UsageError(f"The output schema is not a JSON schema: {reason}") from error
    return found


def _read_file(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"The output schema {str(file)!r} cannot be read: {error.strerror}", hint="Give a JSON schema, or its file"
        ) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"The output schema {str(file)!r} is larger than {MAX_BYTES} bytes")
    return data.decode("utf-8", "replace")
