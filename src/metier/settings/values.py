"""Values of settings by dotted key, and as the text that a file or a person reads."""

import json
from typing import cast

from metier.settings.model import Settings
from metier.settings.secrecy import mask

type Shown = str | int | float | bool | list[str] | None


def get_value(settings: Settings, key: str) -> object:
    """The value of a setting that exists."""
    value: object = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def show_value(value: object) -> Shown:
    """The value as JSON may show it: no secret, no password of an address."""
    match value:
        case str():
            return mask(value)
        case tuple():
            return [mask(str(item)) for item in cast("tuple[object, ...]", value)]
        case bool() | int() | float() | None:
            return value
        case _:
            raise AssertionError(f"A setting of an unknown type: {type(value)}")


def render_value(value: object) -> str:
    """The value as `agent.yaml` would have it: plain where that is safe, in quotes where it is not."""
    shown = show_value(value)
    match shown:
        case bool() | None:
            return json.dumps(shown)
        case int():
            return str(shown)
        case float():
            return str(int(shown)) if shown.is_integer() else str(shown)
        case list():
            return f"[{', '.join(_scalar(item, in_list=True) for item in shown)}]"
        case str():
            return _scalar(shown, in_list=False)


def _scalar(text: str, *, in_list: bool) -> str:
    """Plain only if made of harmless characters; JSON's quoting is also YAML's."""
    harmless = all(character.isalnum() or character in "_-./" for character in text)
    is_word = bool(text) and text[0].isalpha() and text.lower() not in _MEANT_OTHERWISE
    starts_as_path = text.startswith(("./", "/", "../"))
    if harmless and (is_word or starts_as_path) and not (in_list and not is_word):
        return text
    return json.dumps(text, ensure_ascii=False)


_MEANT_OTHERWISE = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
