"""The arguments of a call for a user who decides about it: secrets are masked, and nothing that would run is hidden."""

import functools
import re

from metier.telemetry.redaction import Json, Redactor, build_redactor
from metier.telemetry.sanitize import reveal

_SIGNS = re.compile(r"[;|&$`()<>{}\n]")
"""Characters by which a shell tells commands apart."""


def show_call(value: Json, redactor: Redactor) -> Json:
    """Return the arguments of a call, at any depth, as a user may see them."""
    match value:
        case str():
            return show_call_text(value, redactor)
        case list():
            return [show_call(item, redactor) for item in value]
        case dict():
            return {
                reveal(key): redactor.hide(item) if redactor.covers(key) else show_call(item, redactor)
                for key, item in value.items()
            }
        case _:
            return value


def show_call_text(text: str, redactor: Redactor) -> str:
    """Return the text of a call as a user may see it.

    What only looks like a secret stays visible if masking it would hide a sign of the shell: the model chose that text,
    and `sshpass -p a;rm` would show no `rm`.
    """
    known = redactor.redact_known(text)
    readings = (redactor.redact(text), _build_format_redactor().redact(known))
    return reveal(next((masked for masked in readings if has_same_signs(masked, known)), known))


def has_same_signs(masked: str, text: str) -> bool:
    """Return False if masking a text hid a sign by which a shell tells commands apart."""
    return _SIGNS.findall(masked) == _SIGNS.findall(text)


@functools.cache
def _build_format_redactor() -> Redactor:
    return build_redactor(generic_names=False, random_words=False)


def reveal_value(value: Json) -> Json:
    """Return the arguments of a call with every control, bidi and invisible character made visible."""
    match value:
        case str():
            return reveal(value)
        case list():
            return [reveal_value(item) for item in value]
        case dict():
            return {reveal(key): reveal_value(item) for key, item in value.items()}
        case _:
            return value
