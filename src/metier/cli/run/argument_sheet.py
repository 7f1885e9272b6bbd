"""The arguments of a call as a text for an editor: each under its name, texts as they are, other values as JSON."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from metier.errors import UsageError

_HEAD = (
    "Change what stands below the names, save and close. Nothing changed, or an empty file: the call stays as it is."
)


def write_sheet(arguments: Mapping[str, JsonValue]) -> str:
    mark = _find_mark(arguments)
    lines = [f"{mark} {_HEAD}"]
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"{mark} {name}:", text]
    return "\n".join(lines) + "\n"


def parse_sheet(sheet: str, before: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The other way round, by the sheet's own mark. Raises `UsageError` for a name that was not there."""
    mark = sheet.partition(" ")[0]
    if not sheet.strip():
        return {**before}
    if not mark or mark.strip("=") or len(mark) < len(_MARK):
        raise UsageError("The first line of the sheet is gone", hint="Leave the lines with === as they are")
    values: dict[str, list[str]] = {}
    name = ""
    for line in sheet.removesuffix("\n").split("\n")[1:]:
        if line.startswith(f"{mark} ") and line.endswith(":"):
            name = line[len(mark) + 1 : -1]
            values[name] = []
        elif name:
            values[name].append(line)
    if unknown := [key for key in values if key not in before]:
        raise UsageError(f"The call has no argument {unknown[0]!r}")
    return {key: _read(key, "\n".join(values[key]), before[key]) for key in before if key in values}


_MARK = "==="


def _find_mark(arguments: Mapping[str, JsonValue]) -> str:
    """One that no line of the texts begins with."""
    mark = _MARK
    texts = [value for value in arguments.values() if isinstance(value, str)]
    while any(line.startswith(mark) for text in texts for line in text.split("\n")):
        mark += "="
    return mark


def _read(name: str, text: str, before: JsonValue) -> JsonValue:
    if isinstance(before, str):
        return text
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The argument {name!r} is not JSON: {error}") from error
    return value
