"""Base classes of values that are read and written as JSON, and their JSON forms.

`StoredValue` is for data that Metier writes: messages, decisions, events, journal entries. `Value` is for files that
users write, because pydantic reports all problems with their location.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

from msgspec import NODEFAULT, Meta, Struct, to_builtins
from msgspec.structs import fields
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pydantic import JsonValue
else:
    # msgspec cannot resolve a recursive type; a JSON decoder only returns JSON anyway.
    JsonValue = Any

AwareDatetime = Annotated[datetime, Meta(tz=True)]

WHEN_USED = ConfigDict(defer_build=True)
"""For a module's `TypeAdapter`: build it on first use, not on import."""


class Value(BaseModel):
    """A frozen value that is validated when it is created. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class StoredValue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen value that Metier writes and reads. Types are checked when it is read, not when it is created."""


class MadeHere:
    """Marks a field with text of Metier itself, such as a hash, which needs no redaction."""


class OmitDefault:
    """Marks a field that was added after the first release. JSON forms omit its default.

    Hashes of requests and seals of runs are computed from JSON forms, and must not change for older runs.
    """


OwnText = Annotated[str, MadeHere()]


def dump_fields(value: Struct, *, with_defaults: bool = True) -> dict[str, JsonValue]:
    """Return the JSON form of a value, with all fields or only those that differ from their defaults.

    Journals omit defaults. Users and hashes get all fields, which `msgspec.to_builtins` cannot do for entries.
    """
    config = value.__struct_config__
    found: dict[str, JsonValue] = {}
    if config.tag_field is not None and with_defaults:
        found[config.tag_field] = cast("str", config.tag)  # all our tags are strings
    for field in _list_fields(type(value)):
        item = getattr(value, field.name)
        if (field.omits_default or not with_defaults) and item == field.default:
            continue
        found[field.name] = dump_value(item, with_defaults=with_defaults)
    return found


def dump_value(item: object, *, with_defaults: bool = True) -> JsonValue:
    """Return the JSON form of a field's value; nested values like `dump_fields`."""
    if isinstance(item, Struct):
        return dump_fields(item, with_defaults=with_defaults)
    if isinstance(item, tuple | list):
        items = cast("Sequence[object]", item)  # the items may have any type
        return [dump_value(each, with_defaults=with_defaults) for each in items]
    if isinstance(item, BaseModel):
        return item.model_dump(mode="json", exclude_defaults=not with_defaults)
    return to_builtins(item)


class _Field(NamedTuple):
    name: str
    default: object
    omits_default: bool


@cache
def _list_fields(kind: type[Struct]) -> tuple[_Field, ...]:
    found: list[_Field] = []
    for info in fields(kind):
        default = info.default if info.default_factory is NODEFAULT else info.default_factory()
        found.append(_Field(info.name, default, has_mark(info.type, OmitDefault)))
    return tuple(found)


def has_mark(annotation: object, mark: type) -> bool:
    """Return True if a field's annotation is `Annotated` with an instance of `mark`."""
    return any(isinstance(each, mark) for each in getattr(annotation, "__metadata__", ()))


def encode_model(value: object) -> object:
    """Encode the settings in a stored value (`enc_hook` of msgspec). Settings are pydantic models: users write them."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decode_model(kind: type, value: object) -> object:
    """Decode the settings in a stored value (`dec_hook` of msgspec)."""
    if issubclass(kind, BaseModel):
        return kind.model_validate(value)
    raise TypeError(f"{kind.__name__} has no JSON form")
