"""Form fields from a JSON schema, and values from a submitted form. Pure; the values are validated elsewhere."""

import json
from collections.abc import Mapping
from typing import Literal, cast

from msgspec import Struct
from pydantic import JsonValue

from metier.errors import UsageError
from metier.views.user_question import DEFAULT_FIELD, UserQuestion

type FieldKind = Literal["text", "lines", "integer", "number", "boolean", "choice", "json"]
_LONG_WORDS = ("text", "content", "notes", "body", "description", "prompt", "message")


class FormField(Struct, frozen=True, kw_only=True):
    name: str
    kind: FieldKind = "text"
    label: str = ""
    description: str = ""
    required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()


def build_fields(question: UserQuestion) -> tuple[FormField, ...]:
    """Build the inputs for the fields of a question."""
    if question.is_free_text:
        return (FormField(name=DEFAULT_FIELD, kind="lines", label="Answer", required=True),)
    return tuple(
        build_field(field.name, dict(field.schema or {}), required=field.required is True) for field in question.fields
    )


def build_field(name: str, schema: JsonValue, *, required: bool = False, default: JsonValue = None) -> FormField:
    """Build one input. Types without a widget are entered as JSON."""
    rules = schema if isinstance(schema, dict) else {}
    options = rules.get("enum")
    given = rules.get("default", default)
    choices = tuple(_write(each) for each in options) if isinstance(options, list) else ()
    return FormField(
        name=name,
        kind="choice" if choices else _choose_kind(name, rules),
        label=str(rules.get("title") or name.replace("_", " ").capitalize()),
        description=str(rules.get("description") or ""),
        required=required,
        default="" if given is None else _write(given),
        choices=choices,
    )


def parse_values(fields: tuple[FormField, ...], given: Mapping[str, str]) -> dict[str, JsonValue]:
    """Parse submitted values by their schemas, without empty fields. Raises `UsageError`."""
    values: dict[str, JsonValue] = {}
    for each in fields:
        # Browsers submit nothing for a checkbox that is off.
        if each.kind == "boolean":
            values[each.name] = given.get(each.name, "") == "true"
            continue
        text = given.get(each.name, "")
        if not text.strip():
            if each.required:
                raise UsageError(f"{each.label or each.name} is missing", hint="Fill in the field")
            continue
        # Browsers submit line breaks as CRLF.
        values[each.name] = _parse(each, text.replace("\r\n", "\n"))
    return values


def _choose_kind(name: str, rules: Mapping[str, JsonValue]) -> FieldKind:
    match rules.get("type", "string"):
        case "integer":
            return "integer"
        case "number":
            return "number"
        case "boolean":
            return "boolean"
        case "string":
            longest = rules.get("maxLength")
            is_long = any(word in name.lower() for word in _LONG_WORDS) or (isinstance(longest, int) and longest > 200)
            return "lines" if is_long else "text"
        case _:
            return "json"


def _parse(field: FormField, text: str) -> JsonValue:
    try:
        match field.kind:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "json":
                return cast("JsonValue", json.loads(text))
            case "choice":
                return text if text in field.choices else _refuse(field, text)
            case _:
                return text
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{field.label or field.name} is not {_NOUNS[field.kind]}", hint="Correct the field"
        ) from error


_NOUNS: dict[str, str] = {"integer": "a whole number", "number": "a number", "json": "JSON"}


def _refuse(field: FormField, text: str) -> JsonValue:
    raise UsageError(
        f"{field.label or field.name} cannot be {text[:60]!r}", hint=f"Use one of {', '.join(field.choices)}"
    )


def _write(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
