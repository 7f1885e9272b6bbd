"""Call arguments for approvals: secrets are masked, but nothing that would be executed is hidden."""

import functools
import re

from metier.telemetry.redaction import Json, Redactor, build_redactor
from metier.telemetry.sanitize import reveal

_SIGNS = re.compile(r"[;|&$`()<>{}\n]")
"""Shell metacharacters."""


def show_call(value: Json, redactor: Redactor) -> Json:
    """Mask the arguments of a call for display, at any depth."""
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
    """Mask the text of a call for display."""
    # A masked guess must not hide shell metacharacters: the model chooses the text, and a masked `sshpass -p a;rm`
    # would not show the `rm`. So text that only looks like a secret then stays visible.
    known = redactor.redact_known(text)
    readings = (redactor.redact(text), _build_format_redactor().redact(known))
    return reveal(next((masked for masked in readings if has_same_signs(masked, known)), known))


def has_same_signs(masked: str, text: str) -> bool:
    """Return False if masking hid a shell metacharacter."""
    return _SIGNS.findall(masked) == _SIGNS.findall(text)


@functools.cache
def _build_format_redactor() -> Redactor:
    return build_redactor(generic_names=False, random_words=False)


def reveal_value(value: Json) -> Json:
    """Make every control, bidi and invisible character of call arguments visible."""
    match value:
        case str():
            return reveal(value)
        case list():
            return [reveal_value(item) for item in value]
        case dict():
            return {reveal(key): reveal_value(item) for key, item in value.items()}
        case _:
            return value
