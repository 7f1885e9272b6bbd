"""Schemas that somebody wrote down as JSON with the names of types."""

import json

from .claims import Unreadable, claim, point

TYPE_WORDS = {
    "string": "string", "str": "string", "text": "string", "integer": "integer", "int": "integer",
    "number": "number", "float": "number", "decimal": "number", "boolean": "boolean", "bool": "boolean",
    "object": "object", "array": "array", "list": "array", "null": "null",
}  # fmt: skip
FORMAT_WORDS = {
    "date": "date", "datetime": "date-time", "date-time": "date-time", "timestamp": "date-time",
    "uuid": "uuid", "email": "email", "uri": "uri", "url": "uri",
}  # fmt: skip
_TAKEN = ("description", "enum", "format", "minimum", "maximum", "minLength", "maxLength", "pattern", "default", "examples")


def is_description(value):
    """`{"age?": "integer"}` or `{"fields": [{"name": …, "type": …}]}`: words of types instead of values."""
    if not isinstance(value, dict) or not value:
        return False
    if isinstance(value.get("fields"), list) and value["fields"]:
        return all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in value["fields"])
    return all(isinstance(item, str) and read_word(item) is not None for item in value.values())


def is_plain_description(value):
    """Nobody would take it for records: every type is a word for one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not is_description(value):
        return False
    fields = value["fields"] if isinstance(value.get("fields"), list) else []
    return all(isinstance(field.get("type"), str) and read_word(field["type"]) is not None for field in fields)


def read_word(word):
    """The schema of `integer`, `date[]`, `string?`; nothing for a word that is none."""
    word = word.strip().lower().removesuffix("?")
    if word.endswith("[]"):
        inner = read_word(word.removesuffix("[]"))
        return None if inner is None else {"type": "array", "items": inner}
    if word in FORMAT_WORDS:
        return {"type": "string", "format": FORMAT_WORDS[word]}
    return {} if word == "any" else {"type": TYPE_WORDS[word]} if word in TYPE_WORDS else None


def describe(value):
    if not is_description(value):
        raise Unreadable("write {\"name\": \"type\"}, or {\"fields\": [{\"name\": …, \"type\": …}]}")
    trace, properties, required = {}, {}, []
    fields = value.get("fields") if isinstance(value.get("fields"), list) else None
    if fields is None:
        fields = [{"name": key.rstrip("?"), "type": kind, "required": not key.endswith("?")} for key, kind in value.items()]
    for field in fields:
        name, word = field["name"], str(field.get("type", "string"))
        schema = read_word(word)
        if schema is None:
            known = ", ".join((*TYPE_WORDS, *FORMAT_WORDS))
            raise Unreadable(f"field {name!r} has the type {word!r}; known are {known}, each also with []")
        properties[name] = {**schema, **{key: field[key] for key in _TAKEN if key in field}}
        if field.get("required", True) and not word.endswith("?"):
            required.append(name)
        evidence = claim("declared", f"the description says {json.dumps(field, ensure_ascii=False)[:120]}")
        if "type" not in field:
            evidence = claim("assumed", "the description names no type: text")
        trace[f"/properties/{point(name)}"] = {"claims": {"type": evidence}}
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}, trace
