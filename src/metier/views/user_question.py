"""A run's question to the user: its text and the typed fields of the answer, parsed from the model's arguments."""

from collections.abc import Mapping

from msgspec import Struct
from pydantic import JsonValue

DEFAULT_FIELD = "answer"
"""The name of the answer if the question names no fields."""


class QuestionField(Struct, frozen=True, kw_only=True):
    """One value that a question asks for."""

    name: str
    schema: Mapping[str, JsonValue] | None = None
    """Its JSON Schema; None if the question gives only a name."""
    required: bool | None = None
    """None if the question doesn't say. Forms that can't express that use their own default."""

    @property
    def types(self) -> tuple[str, ...]:
        """The JSON types that the schema accepts; empty if it names none."""
        accepted = self.schema.get("type") if self.schema is not None else None
        if isinstance(accepted, list):
            return tuple(str(kind) for kind in accepted)
        return (str(accepted),) if accepted else ()


class UserQuestion(Struct, frozen=True, kw_only=True):
    """An unanswered question of a run."""

    request_id: str
    text: str
    fields: tuple[QuestionField, ...]
    """Empty if the question is an empty object: then any names are accepted."""
    schema: dict[str, JsonValue] | None = None
    """The JSON Schema that all values together must match; None if there is none or the asking step checks it."""
    raw_fields: JsonValue = None
    """The fields as the model wrote them, for JSON output."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, at least one."""
        return tuple(field.name for field in self.fields) or (DEFAULT_FIELD,)

    @property
    def required_names(self) -> tuple[str, ...]:
        """The fields that must be given, or the first field if the question doesn't say."""
        return tuple(field.name for field in self.fields if field.required) or self.names[:1]

    @property
    def is_free_text(self) -> bool:
        """Return True if the question names no fields, so that one text answers it."""
        return self.fields == FREE_TEXT


FREE_TEXT = (QuestionField(name=DEFAULT_FIELD, required=True),)


def parse_question(request_id: str, text: str, fields: JsonValue, *, is_checked: bool = False) -> UserQuestion:
    """Parse the fields of a question. `is_checked`: the step that asks checks the answer itself."""
    has_schema = isinstance(fields, dict) and isinstance(fields.get("properties"), dict)
    return UserQuestion(
        request_id=request_id,
        text=text,
        fields=parse_fields(fields),
        # The asking skill checks the answer by its contract, and asks again if it is wrong.
        schema=fields if has_schema and isinstance(fields, dict) and not is_checked else None,
        raw_fields=fields,
    )


def parse_fields(fields: JsonValue) -> tuple[QuestionField, ...]:
    """Accept an object schema, a mapping of names to schemas or descriptions, or a list of names or fields.

    Models write all of these; nothing at all means one free text.
    """
    if isinstance(fields, dict):
        properties, required = fields.get("properties"), fields.get("required")
        named = properties if isinstance(properties, dict) else fields
        wanted = {str(name) for name in required} if isinstance(required, list) else None
        return tuple(
            QuestionField(name=name, schema=_read_schema(each), required=None if wanted is None else name in wanted)
            for name, each in named.items()
        )
    if isinstance(fields, list) and fields:
        return tuple(_parse_listed(each) for each in fields)
    return FREE_TEXT


def _parse_listed(each: JsonValue) -> QuestionField:
    if isinstance(each, dict):
        name, required = str(each.get("name", DEFAULT_FIELD)), each.get("required")
        return QuestionField(name=name, schema=each, required=required if isinstance(required, bool) else None)
    return QuestionField(name=str(each), required=True)


def _read_schema(each: JsonValue) -> Mapping[str, JsonValue] | None:
    if isinstance(each, str):
        return {"description": each}
    return each if isinstance(each, dict) else None
