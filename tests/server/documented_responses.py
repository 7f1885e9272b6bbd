"""Checks every response of the API against the server's OpenAPI document."""

import re
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx2
from jsonschema import Draft202012Validator, FormatChecker

from metier.server.app import create_app
from metier.server.server_config import ServerConfig

_PREFIX = "/api/v1/"
_METHODS = {"get", "post", "delete"}
_FORMATS = FormatChecker(formats=())


@_FORMATS.checks("date-time", raises=ValueError)
def _is_time(text: object) -> bool:
    return datetime.fromisoformat(str(text)).tzinfo is not None


class Operation(NamedTuple):
    method: str
    path: re.Pattern[str]
    name: str
    responses: dict[str, Any]


@cache
def load_document() -> dict[str, Any]:
    """The document of a server; only the name of its cookie differs between servers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = ServerConfig(
            folder=folder, home=folder, environ={}, token="", key=b"", private=folder, port=0, owner="tester"
        )
        return create_app(config).openapi()


@cache
def list_operations() -> tuple[Operation, ...]:
    return tuple(_read_operations())


def _read_operations() -> Iterator[Operation]:
    for path, operations in load_document()["paths"].items():
        # IDs of tasks have slashes.
        pattern = re.compile(re.sub(r"{(\w+)}", lambda found: ".+" if found[1] == "task" else "[^/]+", path))
        for method in _METHODS & set(operations):
            operation = operations[method]
            yield Operation(method, pattern, operation["operationId"], operation["responses"])


def check_response(response: httpx2.Response, succeeded: set[str]) -> None:
    """Check a response of the API, and add the ID of its operation if it is a success."""
    operation = _find_operation(response.request)
    if operation is None or response.status_code == 405:
        return
    where = f"{response.status_code} of {operation.name}"
    documented = operation.responses.get(str(response.status_code))
    assert documented is not None, f"{where} is not documented"
    media_type = response.headers.get("content-type", "").split(";")[0]
    contents = documented.get("content", {})
    assert media_type in contents or not (media_type or contents), f"{where} is {media_type}, not {list(contents)}"
    if media_type.endswith("json"):
        response.read()
        validator = _get_validator(operation.name, response.status_code, media_type)
        found = [
            f"{where}: {error.json_path}: {error.message[:500]}" for error in validator.iter_errors(response.json())
        ]
        assert not found, "\n".join(found)
    if response.is_success:
        succeeded.add(operation.name)


def _find_operation(request: httpx2.Request) -> Operation | None:
    if not request.url.path.startswith(_PREFIX):
        return None
    return next(
        (
            operation
            for operation in list_operations()
            if operation.method == request.method.lower() and operation.path.fullmatch(request.url.path)
        ),
        None,
    )


@cache
def _get_validator(name: str, status: int, media_type: str) -> Any:  # the types of the library are incomplete
    operation = next(each for each in list_operations() if each.name == name)
    schema = operation.responses[str(status)]["content"][media_type]["schema"]
    return Draft202012Validator({**schema, "components": _close_components()}, format_checker=_FORMATS)


@cache
def _close_components() -> dict[str, Any]:
    """The schemas of the document, without fields that they don't name: those would be undocumented."""
    components = load_document()["components"]
    return {**components, "schemas": {name: _close(schema) for name, schema in components["schemas"].items()}}


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", {"additionalProperties": False, **schema}) if "properties" in schema else schema
