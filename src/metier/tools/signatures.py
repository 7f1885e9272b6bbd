"""The parameters of a Python function as a pydantic model and a JSON schema. Calls nothing."""

import inspect
from collections.abc import Callable, Collection
from typing import cast, get_type_hints

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from metier.errors import ToolFailed

CODE = "toolset_schema"
"""The error code of a function whose parameters cannot be described."""


class Signature(Struct, frozen=True):
    """The parameters of a function. `parse` turns JSON into keyword arguments."""

    model: type[BaseModel]
    names: dict[str, str]
    """The parameter that each field of the model stands for."""

    @property
    def schema(self) -> dict[str, JsonValue]:
        return cast("dict[str, JsonValue]", _without_titles(self.model.model_json_schema()))

    def parse(self, arguments: dict[str, JsonValue]) -> dict[str, object]:
        """Keyword arguments for the function, converted to its types. Raises pydantic's `ValidationError`."""
        values = self.model.model_validate(arguments)
        return {name: getattr(values, field) for field, name in self.names.items()}


def read_signature(function: Callable[..., object], *, skip: Collection[str] = ()) -> Signature:
    """One field per parameter, from its type hint, its default and its `Annotated[…, Field(…)]`.

    Raises `ToolFailed` for a parameter without a type hint and for one that has no name to call it by.
    """
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, tuple[object, object]] = {}
    names: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skip:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolFailed(f"Parameter {name!r} cannot be described; use named parameters", code=CODE)
        if name not in hints:
            raise ToolFailed(f"Parameter {name!r} has no type hint", code=CODE)
        # The field has a name of its own: a parameter may be called `copy` or `json`, as methods of a model are.
        field = f"parameter_{len(names)}"
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[field], names[field] = (hints[name], Field(default, alias=name)), name
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    # Fields come as keywords whose types are only known now, which no overload of this function describes.
    model = create_model(function.__name__, __config__=config, **fields)  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
    return Signature(cast("type[BaseModel]", model), names)


def read_description(function: Callable[..., object]) -> str:
    """The first paragraph of the docstring, on one line."""
    documentation = inspect.getdoc(function) or ""
    return " ".join(documentation.split("\n\n")[0].split())


def _without_titles(schema: object) -> object:
    """The titles that pydantic adds repeat the names, and every one of them costs tokens."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    entries = cast("dict[str, object]", schema)  # keys of a JSON object
    return {
        key: _without_titles(value) for key, value in entries.items() if not (key == "title" and isinstance(value, str))
    }
