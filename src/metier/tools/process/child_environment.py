"""The environment variables and the Python of a child process.

The variables are built from a list, never by removing some.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from metier.telemetry.otel.trace_context import VARIABLE


def base_interpreter() -> str:
    """The Python that this virtual environment was made from."""
    return getattr(sys, "_base_executable", "") or sys.executable


ORDINARY = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR", "TEMP", "TMP",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY", "no_proxy",
    "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "WINDIR", "USERPROFILE", "APPDATA",
    "LOCALAPPDATA", "PROGRAMDATA",
)  # fmt: skip
"""Variables that every program may see: locations and locale; none of them is a credential."""

INDEX = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_*", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX",
    "UV_SYSTEM_CERTS",
    "UV_NATIVE_TLS", "UV_INSECURE_HOST", "UV_CACHE_DIR", "UV_LINK_MODE", "UV_OFFLINE", "UV_HTTP_TIMEOUT",
    "UV_KEYRING_PROVIDER", "XDG_CACHE_HOME", "XDG_DATA_HOME", "NETRC", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
    "http_proxy", "https_proxy", "all_proxy",
)  # fmt: skip
"""Variables that `uv` needs to reach its package index. They may hold credentials, so a script never sees them."""

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

OWN_SECRETS = (
    "AGENT_*", "METIER_*", "ANTHROPIC_*", "OPENAI_*", "GEMINI_*", "GOOGLE_API_KEY", "DATABASE_URL", "STATE_STORE_*",
    "CELERY_*",
)  # fmt: skip
"""The agent's own: never passed because of a wildcard. A skill that needs one must name it, where a user sees it."""

MIN_PREFIX = 3
"""A pattern like `*` or `A*` would pass variables that the author did not think of; it matches nothing."""


def build_environment(base: Mapping[str, str], allow: Iterable[str] = ()) -> dict[str, str]:
    """The ordinary variables of `base`, and those that `allow` names (`KALSHI_API_KEY`, `KALSHI_*`).

    PATH is there always and has absolute folders only: a relative one would find programs wherever a child runs.
    """
    patterns = tuple(allow)
    passed = {name: value for name, value in base.items() if _matches(name, ORDINARY) or is_allowed(name, patterns)}
    passed |= {name: base[name] for name in PROXIES if name in base and not _has_password(base[name])}
    folders = [folder for folder in base.get("PATH", "").split(os.pathsep) if Path(folder).is_absolute()]
    return passed | {"PATH": os.pathsep.join(folders) or os.defpath}


def build_index_environment(base: Mapping[str, str]) -> dict[str, str]:
    """For `uv` alone, while it fetches the dependencies of a script."""
    return {name: value for name, value in base.items() if _matches(name, (*ORDINARY, *INDEX))}


def is_allowed(name: str, patterns: Iterable[str]) -> bool:
    """An exact name always counts; a wildcard needs three letters in front and spares the agent's own secrets."""
    return any(_allows(pattern, name) for pattern in patterns)


def _allows(pattern: str, name: str) -> bool:
    if pattern == name:
        return True
    prefix = pattern.split("*", 1)[0].split("?", 1)[0].split("[", 1)[0]
    if prefix == pattern or len(prefix) < MIN_PREFIX:
        return False
    return fnmatchcase(name, pattern) and not _matches(name, OWN_SECRETS)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_password(url: str) -> bool:
    try:
        return "@" in urlsplit(url if "//" in url else f"//{url}").netloc
    except ValueError:
        return True


def name_trace(trace_parent: str) -> dict[str, str]:
    """The step that a process works for, as the variable that OpenTelemetry reads; nothing where traces are off."""
    return {VARIABLE: trace_parent} if trace_parent else {}
