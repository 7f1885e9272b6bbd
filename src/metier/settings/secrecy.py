"""Keep secrets out of files and out of messages: what looks like one, and how a value is shown without it."""

import re

_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|access[_-]?key|private[_-]?key|key|token|secret|password|passwd|passphrase|credentials?"
    r"|auth|authorization|dsn|database[_-]?url|connection[_-]?string)$",
    re.IGNORECASE,
)

_SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(sk-[A-Za-z0-9_-]{8,}|[rs]k_(live|test)_\w{8,}|AIza[\w-]{20,}|ya29\.[\w-]{10,}|gh[pousr]_\w{16,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[a-z]-[\w-]{8,}|A[KS]IA[A-Z0-9]{12,}|hf_[A-Za-z0-9]{16,}"
    r"|gsk_[A-Za-z0-9]{16,}|xai-[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}|-----BEGIN [A-Z ]*PRIVATE KEY)"
)

_URL_PASSWORD = re.compile(r"(?P<start>[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#:@]*):[^\s/?#]*@")

_URL_QUERY_SECRET = re.compile(
    r"(?P<start>[?&](?:api[_-]?key|key|token|access_token|secret|password|sig|signature)=)[^&\s#]+", re.IGNORECASE
)

_NOT_A_SECRET = re.compile(r"\s*([-+]?[\d._]+|true|false|yes|no|on|off|null|~)?\s*", re.IGNORECASE)

_LONGEST_SHOWN = 80


def is_secret_name(name: str, value: str) -> bool:
    """Whether a key of that name with that value is somebody's secret. A number or a switch is not."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_A_SECRET.fullmatch(value)


def looks_secret(value: str) -> bool:
    """Whether the value itself has the form of a key that some vendor gives out."""
    return bool(_SECRET_VALUE.search(value))


def has_password(value: str) -> bool:
    """Whether the value is an address with a password in it."""
    return bool(_URL_PASSWORD.search(value))


def mask(value: str) -> str:
    """The value as it may be shown: keys and the passwords of addresses are replaced by `***`."""
    without_password = _URL_PASSWORD.sub(r"\g<start>:***@", value)
    return _SECRET_VALUE.sub("***", _URL_QUERY_SECRET.sub(r"\g<start>***", without_password))


def quote(value: str) -> str:
    """The value for a message: masked, short, control characters escaped, in quotes."""
    shown = mask(value)
    return repr(shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "…")
