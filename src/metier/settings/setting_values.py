"""Values of settings: lookup by dotted key, origin, formatting, and masking of secrets."""

import functools
import json
import re
from collections.abc import Iterable
from typing import Literal, cast

from msgspec import Struct

from metier.definitions.text.yaml_text import Node, Plain
from metier.settings.sections import Settings
from metier.telemetry.excerpt import cut_end
from metier.telemetry.redaction import Redactor, build_redactor
from metier.telemetry.secret_names import MARK

_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|access[_-]?key|private[_-]?key|key|token|secret|password|passwd|passphrase|credentials?"
    r"|auth|authorization|dsn|database[_-]?url|connection[_-]?string)$",
    re.IGNORECASE,
)

# Stricter than log redaction, which must not change ordinary text: no setting starts like this.
_CUT_SHORT = re.compile(r"(?<![A-Za-z0-9])(?:sk-|AIza|gh[pousr]_|xox[a-z]-)[\w-]{8,}|-----BEGIN [A-Z ]*PRIVATE KEY")

_IN_QUERY = re.compile(
    r"(?P<start>[?&](?:api[_-]?key|key|token|access_token|secret|password|sig|signature)=)[^&\s#]+", re.IGNORECASE
)

_NOT_A_SECRET = re.compile(r"\s*([-+]?[\d._]+|true|false|yes|no|on|off|null|~)?\s*", re.IGNORECASE)

_PASSWORD = "url-password"  # noqa: S105 - how the redactor calls such a finding
_MAX_SHOWN_LENGTH = 80

# Words that YAML 1.1 reads as a boolean or as nothing, so they need quotes.
_MEANT_OTHERWISE = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def is_secret_name(name: str, value: str) -> bool:
    """Return True if a key of that name with that value is a secret. Numbers and booleans are not."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_A_SECRET.fullmatch(value)


def looks_secret(value: str) -> bool:
    """Return True if the value has the form of a vendor's key."""
    found = any(finding.kind != _PASSWORD for finding in _redactor().find(value))
    return found or bool(_CUT_SHORT.search(value))


def has_password(value: str) -> bool:
    """Return True if the value is an address with a password."""
    return any(finding.kind == _PASSWORD for finding in _redactor().find(value))


def mask(value: str) -> str:
    """Mask keys, and passwords in addresses, for display."""
    return _CUT_SHORT.sub(MARK, _IN_QUERY.sub(rf"\g<start>{MARK}", _redactor().redact(value)))


def quote(value: str) -> str:
    """Format the value for a message: masked, shortened, escaped and quoted."""
    return repr(cut_end(mask(value), _MAX_SHOWN_LENGTH))


@functools.cache
def _redactor() -> Redactor:
    return build_redactor(generic_names=False)


type Shown = str | int | float | bool | list[str] | None


def get_value(settings: Settings, key: str) -> object:
    """Return the value of an existing setting."""
    value: object = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def show_value(value: object) -> Shown:
    """Convert the value for JSON output, with secrets masked."""
    match value:
        case str():
            return mask(value)
        case tuple() | list():
            return [mask(str(item)) for item in cast("Iterable[object]", value)]
        case bool() | int() | float() | None:
            return value
        case _:
            raise AssertionError(f"A setting of an unknown type: {type(value)}")


def render_value(value: object) -> str:
    """Format the value as YAML, quoted if necessary."""
    shown = show_value(value)
    match shown:
        # Before `int`, because a boolean is one.
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
    """Format a text as a plain scalar if that is safe, else quoted as JSON, which is valid YAML."""
    # Text that starts with a digit is quoted too: YAML reads 1.10 as a number and 2026-01-01 as a date.
    harmless = all(character.isalnum() or character in "_-./" for character in text)
    is_word = bool(text) and text[0].isalpha() and text.lower() not in _MEANT_OTHERWISE
    starts_as_path = text.startswith(("./", "/", "../"))
    if harmless and (is_word or starts_as_path) and not (in_list and not is_word):
        return text
    return json.dumps(text, ensure_ascii=False)


type OriginKind = Literal["flag", "environment", "file", "default"]


class Origin(Struct, frozen=True, kw_only=True):
    """The source of a value. The kind `file` has `file` and `line`."""

    kind: OriginKind
    variable: str = ""
    file: str = ""
    line: int | None = None

    @property
    def detail(self) -> str:
        """The variable, or the file and line; empty for flags and defaults."""
        return self.variable or (f"{self.file}:{self.line}" if self.line else self.file)

    def render(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


class Given(Struct, frozen=True):
    """A value as the user wrote it, before conversion."""

    value: Plain
    origin: Origin
    node: Node | None = None
    """The node of a value from a file."""


type Layer = dict[str, Given]
"""Settings of one source, by dotted key."""
