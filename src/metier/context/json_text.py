"""Lenient parsing of a JSON object in a model's reply. Pure, linear in the text, never raises.

Unlike a JSON parser, it accepts fences, prose, comments and trailing commas. It guesses nothing else and reports other
invalid JSON with its position.
"""

import json
from typing import NoReturn, cast

from msgspec import Struct
from pydantic import JsonValue

MAX_CHARACTERS = 2_000_000
MAX_STARTS = 64
"""Maximum number of `{` to try as the start of the object. Prose with more braces is not an answer."""


class NotJson(Struct, frozen=True):
    """Why no object was found."""

    message: str


def recover_object(text: str) -> dict[str, JsonValue] | NotJson:
    """Return the first JSON object in the text, parsed strictly if possible, or else leniently."""
    if len(text) > MAX_CHARACTERS:
        return NotJson(f"The reply has more than {MAX_CHARACTERS} characters")
    # The standard parser first: it is much faster than the scan below.
    whole = _parse(text.strip())
    if isinstance(whole, dict):
        return whole
    failure = whole if isinstance(whole, NotJson) else NotJson("The reply is JSON but not an object")
    start = text.find("{")
    for _ in range(MAX_STARTS):
        if start < 0:
            break
        end, cleaned = _scan_object(text, start)
        candidate = _parse(cleaned) if end else NotJson("An object is opened and never closed")
        if isinstance(candidate, dict):
            return candidate
        failure = candidate if isinstance(candidate, NotJson) else failure
        # A complete but invalid object is skipped as a whole: an object inside it is not the answer.
        start = text.find("{", end or start + 1)
        if not end:
            break
    return failure


def _parse(text: str) -> JsonValue | NotJson:
    try:
        return cast("JsonValue", json.loads(text, parse_constant=_reject_constant))  # json gives only JSON values
    except (ValueError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else "A value is too deep, too long or not JSON"
        position = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        return NotJson(f"{what}{position}")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _scan_object(text: str, start: int) -> tuple[int, str]:
    """Return the end of the object at `start`, or 0, and its text without comments and trailing commas."""
    pieces: list[str] = []
    depth = 0
    index = start
    while index < len(text):
        character = text[index]
        if character == '"':
            # Brackets and comment signs inside of strings don't count.
            end = _end_of_string(text, index)
            pieces.append(text[index:end])
            index = end
            continue
        if character == "/" and text[index + 1 : index + 2] in ("/", "*"):
            index = _end_of_comment(text, index)
            continue
        if character in "}]":
            _drop_trailing_comma(pieces)
        pieces.append(character)
        depth += (character in "{[") - (character in "}]")
        index += 1
        if depth == 0:
            return index, "".join(pieces)
    return 0, ""


def _end_of_string(text: str, start: int) -> int:
    index = start + 1
    while index < len(text) and text[index] != '"':
        index += 2 if text[index] == "\\" else 1
    return min(index + 1, len(text))


def _end_of_comment(text: str, start: int) -> int:
    closing = "\n" if text[start + 1] == "/" else "*/"
    end = text.find(closing, start + 2)
    return len(text) if end < 0 else end + len(closing)


def _drop_trailing_comma(pieces: list[str]) -> None:
    last = len(pieces) - 1
    while last >= 0 and pieces[last].isspace():
        last -= 1
    if last >= 0 and pieces[last] == ",":
        del pieces[last:]
