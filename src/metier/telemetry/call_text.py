"""Call arguments for approvals: secrets are masked, but nothing that would be executed is hidden."""

import functools
import re

from metier.telemetry.redaction import Json, Redactor, build_redactor
from metier.telemetry.sanitize import reveal

_METACHARACTERS = re.compile(r"[;|&$`()<>{}\n]")
"""Characters with a meaning in a shell."""


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
    # A guessed secret must not hide shell metacharacters: the model chooses the text, and if the value of
    # `sshpass -p a;rm` were masked, the approver wouldn't see the `rm`. So such a guess stays visible.
    known = redactor.redact_known(text)
    candidates = (redactor.redact(text), _build_format_redactor().redact(known))
    return reveal(next((masked for masked in candidates if has_same_metacharacters(masked, known)), known))


def has_same_metacharacters(masked: str, text: str) -> bool:
    """Return False if masking hid a shell metacharacter."""
    return _METACHARACTERS.findall(masked) == _METACHARACTERS.findall(text)


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
