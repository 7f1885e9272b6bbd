"""Render the reference of the Python and HTTP APIs."""

import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, override

import metier

_METHODS = ("get", "post", "put", "patch", "delete")


def render_python() -> str:
    """Return every public name with its signature, purpose, public methods and fields."""
    parts = [
        "# Python API\n",
        "The public names of `import metier`. [The tutorial](../tutorials/python.md) shows how to use them.\n",
    ]
    for name in sorted(metier.__all__, key=str.lower):
        if not name.startswith("_"):
            parts.extend(_describe(name, getattr(metier, name)))
    return "\n".join(parts)


def _describe(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - any public object
    yield f"## metier.{name}\n"
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        kind = f"Subclass of `{bases}`. " if bases and not bases.startswith("Protocol") else ""
        yield f"{kind}{_first_words(value)}\n"
        rows = list(_list_members(value))
        if rows:
            yield "\n".join(rows) + "\n"
    elif callable(value):
        yield f"```python\n{name}{_signature(value)}\n```\n"
        yield _first_words(value) + "\n"
    else:
        yield f"{_first_words(value)}\n"


def _list_members(value: type) -> Iterator[str]:
    for name, member in sorted(vars(value).items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            yield _list_member(f"{name}{_signature(member, is_method=True)}", _first_words(member))
        elif isinstance(member, property) and member.fget is not None:
            yield _list_member(name, _first_words(member.fget))
    fields = [name for name in getattr(value, "__annotations__", {}) if not name.startswith("_")]
    if fields:
        yield f"- Fields: {', '.join(f'`{name}`' for name in fields)}"


def _list_member(name: str, text: str) -> str:
    return f"- `{name}`: {text}" if text else f"- `{name}`"


class _Omitted:
    """A default that is too long to show."""

    @override
    def __repr__(self) -> str:
        return "…"


def _signature(value: Any, *, is_method: bool = False) -> str:  # noqa: ANN401
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    kept = [parameter for parameter in signature.parameters.values() if not (is_method and parameter.name == "self")]
    plain = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.default if isinstance(parameter.default, str | int | float | bool | None) else _Omitted(),
        )
        if parameter.default is not inspect.Parameter.empty
        else parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in kept
    ]
    return str(inspect.Signature(plain))


def _first_words(value: Any) -> str:  # noqa: ANN401
    """Return the first paragraph of the docstring on one line."""
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split())


def render_http() -> str:
    """Return every route with its purpose and parameters, from the server's OpenAPI document."""
    schema = _load_schema()
    parts = [
        "# HTTP API\n",
        "The routes of `agent serve`; `/api/openapi.json` has the fields. See [the server](../operations/server.md).\n",
        "Every POST also accepts the header `Idempotency-Key`.\n",
    ]
    group = ""
    for path, operations in sorted(schema["paths"].items()):
        if (name := path.split("/")[3]) != group:
            group = name
            parts.append(f"## {group.capitalize()}\n")
        for method in _METHODS:
            if operation := operations.get(method):
                parts.extend(_describe_route(f"{method.upper()} {path}", operation))
    return "\n".join(parts)


def _describe_route(route: str, operation: dict[str, Any]) -> Iterator[str]:
    text = operation.get("description") or operation.get("summary") or ""
    first = " ".join(text.split("\n\n")[0].split())
    yield f"### `{route}`\n\n{first}\n"
    named = [
        f"`{each['name']}`"
        for each in operation.get("parameters", [])
        if each["in"] != "path" and each["name"] != "Idempotency-Key"
    ]
    if named:
        yield f"Parameters: {', '.join(named)}.\n"


def _load_schema() -> dict[str, Any]:
    from metier.server.app import create_app
    from metier.server.server_config import ServerConfig

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server_config = ServerConfig(
            folder=folder, home=folder, environ={}, token="", key=b"", private=folder, port=0, owner="you"
        )
        return create_app(server_config).openapi()
