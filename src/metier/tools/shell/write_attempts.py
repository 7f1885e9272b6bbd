"""Signs that a command which ran in the read-only sandbox tried to write or to connect. Pure.

The sandbox is the boundary, and it needs no signs: they only decide whether the user is asked to run the command once
more with write access, or the model reads the failure.
"""

import re
from collections.abc import Mapping

from metier.tools.protected import SECRETS_REASON, protected_name

_MAX_LINES = 200
_MAX_CHARACTERS = 200
_REFUSED = re.compile(
    r"Read-only file system|Permission denied|Network is (?:down|unreachable)|[Cc]ould not resolve|name resolution"
    r"|[Nn]ame or service not known"
)
"""Messages for the errors that the sandbox returns, in the C locale."""
_PATH_ENDS = re.compile(r"[\s'\"`:‘’]+")


def find_write_attempt(errors: str) -> str:
    """Find the line that reports a refused write or connection; empty if there is none.

    `errors` is the output to standard error of a command that failed.
    """
    lines = errors.splitlines()[-_MAX_LINES:]
    found = (line.strip() for line in lines if _REFUSED.search(line) and not _names_secret(line))
    return next(found, "")[:_MAX_CHARACTERS]


def _names_secret(line: str) -> bool:
    """The command read a file that every sandbox hides: write access would not change that."""
    parts = (part for word in _PATH_ENDS.split(line) for part in word.split("/") if part)
    return any(protected_name(part) == SECRETS_REASON for part in parts)


def use_plain_messages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with error messages in the C locale, and everything else in the locale that it has."""
    plain = dict(environment)
    if everything := plain.pop("LC_ALL", ""):
        plain = {name: value for name, value in plain.items() if not name.startswith("LC_")} | {"LANG": everything}
    return plain | {"LC_MESSAGES": "C"}
