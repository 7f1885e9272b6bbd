"""Base classes of values that are read and written as JSON, and their JSON forms.

What Metier writes itself (messages, decisions, events, journal entries) is a `StoredValue`. What people write in files
is a `Value`, because pydantic reports every problem with its place.
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
    # At run time any value: msgspec cannot resolve a recursive type, and what a JSON decoder returns is JSON anyway.
    JsonValue = Any

AwareDatetime = Annotated[datetime, Meta(tz=True)]

WHEN_USED = ConfigDict(defer_build=True)
"""For a `TypeAdapter` of a module: build it when it is first used, not when the module is imported."""


class Value(BaseModel):
    """A frozen value that is validated when it is made; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class StoredValue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen value that Metier writes and reads back. Types are checked when it is read, not when it is made."""


class MadeHere:
    """Marks a field whose text Metier makes itself, such as a hash: no text from outside, so no secret to look for."""


class OmitDefault:
    """Marks a field that is younger than the first release. Its default stays out of every JSON form.

    The hashes of requests and the seals of runs are made of these forms; those of older runs must stay the same.
    """


OwnText = Annotated[str, MadeHere()]


def dump_fields(value: Struct, *, with_defaults: bool = True) -> dict[str, JsonValue]:
    """Return the JSON form of a value: with all of its fields, or with those that differ from their defaults.

    A journal leaves defaults out; users and hashes get all fields, which `msgspec.to_builtins` cannot do for entries.
    """
    config = value.__struct_config__
    found: dict[str, JsonValue] = {}
    if config.tag_field is not None and with_defaults:
        found[config.tag_field] = cast("str", config.tag)  # tags of Metier are words
    for field in _list_fields(type(value)):
        item = getattr(value, field.name)
        if (field.omits_default or not with_defaults) and item == field.default:
            continue
        found[field.name] = dump_value(item, with_defaults=with_defaults)
    return found


def dump_value(item: object, *, with_defaults: bool = True) -> JsonValue:
    """Return the JSON form of a field's value, with `dump_fields` for the values in it."""
    if isinstance(item, Struct):
        return dump_fields(item, with_defaults=with_defaults)
    if isinstance(item, tuple | list):
        items = cast("Sequence[object]", item)  # any items will do
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
    """True if a field's annotation is `Annotated` with an instance of `mark`."""
    return any(isinstance(each, mark) for each in getattr(annotation, "__metadata__", ()))


def encode_model(value: object) -> object:
    """Encode the settings in a stored value, as `enc_hook` of msgspec. Settings stay pydantic: people write them."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decode_model(kind: type, value: object) -> object:
    """Decode the settings in a stored value, as `dec_hook` of msgspec."""
    if issubclass(kind, BaseModel):
        return kind.model_validate(value)
    raise TypeError(f"{kind.__name__} has no JSON form")
