"""The parameters of a Python function as a pydantic model and a JSON schema. Calls nothing."""

import inspect
from collections.abc import Callable, Collection
from typing import cast, get_type_hints

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from metier.errors import ToolFailed

CODE = "toolset_schema"
"""The error code of a function whose parameters a schema cannot describe."""


class Signature(Struct, frozen=True):
    """The parameters of a function. `parse` turns JSON into keyword arguments."""

    model: type[BaseModel]
    names: dict[str, str]
    """The parameter of each field of the model."""

    @property
    def schema(self) -> dict[str, JsonValue]:
        return cast("dict[str, JsonValue]", _without_titles(self.model.model_json_schema()))

    def parse(self, arguments: dict[str, JsonValue]) -> dict[str, object]:
        """Convert arguments to the function's types. Raises pydantic's `ValidationError`."""
        values = self.model.model_validate(arguments)
        return {name: getattr(values, field) for field, name in self.names.items()}


def read_signature(function: Callable[..., object], *, skip: Collection[str] = ()) -> Signature:
    """Read the parameters of a function: type hints, defaults and `Annotated[…, Field(…)]`.

    Raises `ToolFailed` for a parameter without a type hint, and for one that can't be passed by name.
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
        # Fields get neutral names, because a parameter such as `copy` or `json` would shadow a method of the model.
        field = f"parameter_{len(names)}"
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[field], names[field] = (hints[name], Field(default, alias=name)), name
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    # The overloads of `create_model` don't cover fields that are known only at run time.
    model = create_model(function.__name__, __config__=config, **fields)  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
    return Signature(cast("type[BaseModel]", model), names)


def read_description(function: Callable[..., object]) -> str:
    """Return the first paragraph of the docstring on one line."""
    documentation = inspect.getdoc(function) or ""
    return " ".join(documentation.split("\n\n")[0].split())


def _without_titles(schema: object) -> object:
    """Remove pydantic's titles, which repeat the names and cost tokens."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    entries = cast("dict[str, object]", schema)  # keys of a JSON object
    return {
        key: _without_titles(value) for key, value in entries.items() if not (key == "title" and isinstance(value, str))
    }
