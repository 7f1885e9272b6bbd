"""Does a value fit a schema, and has a text a format? In the keywords that are used here."""

import datetime
import ipaddress
import re

FORMATS = {
    "date-time": r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": r"[^@\s]+@[^@\s]+\.[^@\s.]+",
    "ipv4": r"(\d{1,3}\.){3}\d{1,3}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*://\S+",
}


def type_of(value):
    for kind, python in (("boolean", bool), ("integer", int), ("number", float), ("string", str), ("object", dict)):
        if isinstance(value, python):
            return kind
    return "null" if value is None else "array"


def has_format(text, name, pattern):
    """As validators that check formats would have it: the 30th of February is no date."""
    if not re.fullmatch(pattern, text, re.ASCII):
        return False
    try:
        match name:
            case "date":
                datetime.date.fromisoformat(text)
            case "date-time":
                datetime.datetime.fromisoformat(text.upper())
            case "time":
                datetime.time.fromisoformat(text.upper())
            case "ipv4":
                ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def find_faults(value, schema, root=None, place="$"):
    """Where a value does not fit, in the keywords that are used here."""
    root = root or schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        target = root if schema["$ref"] == "#" else root.get("$defs", {}).get(name, {})
        return find_faults(value, target, root, place)
    if "allOf" in schema:
        return [fault for part in schema["allOf"] for fault in find_faults(value, part, root, place)][:10]
    if "anyOf" in schema:
        fits = any(not find_faults(value, part, root, place) for part in schema["anyOf"])
        return [] if fits else [f"{place} fits none of the alternatives"]
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    kind = type_of(value)
    if wanted and kind not in wanted and not (kind == "integer" and "number" in wanted):
        return [f"{place} is {kind}, not {' or '.join(wanted)}"]
    if "enum" in schema and value not in schema["enum"] or "const" in schema and value != schema["const"]:
        return [f"{place} is none of the listed values"]
    faults = []
    if kind == "object":
        faults += [f"{place} has no {name!r}" for name in schema.get("required", []) if name not in value]
        for name, inner in schema.get("properties", {}).items():
            faults += find_faults(value[name], inner, root, f"{place}.{name}") if name in value else []
        more = schema.get("additionalProperties", {})
        for name in [name for name in value if name not in schema.get("properties", {})] if more else []:
            faults += find_faults(value[name], more, root, f"{place}.{name}")
    if kind == "array":
        faults += find_faults_of_items(value, schema, root, place)
    return faults[:10]


def find_faults_of_items(value, schema, root, place):
    first, rest = schema.get("prefixItems", []), schema.get("items", {})
    faults = [f"{place} has {len(value)} items, at least {schema['minItems']} belong there"] if len(value) < schema.get("minItems", 0) else []
    for at, item in enumerate(value):
        if at >= len(first) and rest is False:
            return [*faults, f"{place} has {len(value)} items, at most {len(first)} belong there"]
        faults += find_faults(item, first[at] if at < len(first) else rest, root, f"{place}[{at}]")
    return faults
