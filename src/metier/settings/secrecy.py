"""Keep secrets out of files and out of messages: what looks like one, and how a value is shown without it."""

import functools
import re

from metier.lazy_regex import lazy_regex
from metier.telemetry.excerpt import cut_end
from metier.telemetry.redaction import Redactor, build_redactor
from metier.telemetry.values import MARK

_SECRET_NAME = lazy_regex(
    r"(^|[_-])(api[_-]?key|access[_-]?key|private[_-]?key|key|token|secret|password|passwd|passphrase|credentials?"
    r"|auth|authorization|dsn|database[_-]?url|connection[_-]?string)$",
    re.IGNORECASE,
)

# Stricter than the redaction of logs, which must leave ordinary text alone: no setting begins like this.
_CUT_SHORT = lazy_regex(r"(?<![A-Za-z0-9])(?:sk-|AIza|gh[pousr]_|xox[a-z]-)[\w-]{8,}|-----BEGIN [A-Z ]*PRIVATE KEY")

_IN_QUERY = lazy_regex(
    r"(?P<start>[?&](?:api[_-]?key|key|token|access_token|secret|password|sig|signature)=)[^&\s#]+", re.IGNORECASE
)

_NOT_A_SECRET = lazy_regex(r"\s*([-+]?[\d._]+|true|false|yes|no|on|off|null|~)?\s*", re.IGNORECASE)

_PASSWORD = "url-password"  # noqa: S105 - how the redactor calls such a finding
_LONGEST_SHOWN = 80


def is_secret_name(name: str, value: str) -> bool:
    """Whether a key of that name with that value is a secret. A number or a switch is not."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_A_SECRET.fullmatch(value)


def looks_secret(value: str) -> bool:
    """Whether the value itself has the form of a key that some vendor gives out."""
    found = any(finding.kind != _PASSWORD for finding in _redactor().find(value))
    return found or bool(_CUT_SHORT.search(value))


def has_password(value: str) -> bool:
    """Whether the value is an address with a password in it."""
    return any(finding.kind == _PASSWORD for finding in _redactor().find(value))


def mask(value: str) -> str:
    """The value as it may be shown: a mark stands for keys and for the passwords of addresses."""
    return _CUT_SHORT.sub(MARK, _IN_QUERY.sub(rf"\g<start>{MARK}", _redactor().redact(value)))


def quote(value: str) -> str:
    """The value for a message: masked, short, control characters escaped, in quotes."""
    return repr(cut_end(mask(value), _LONGEST_SHOWN))


@functools.cache
def _redactor() -> Redactor:
    return build_redactor(generic_names=False)
