"""The environment variables and the Python of a child process. Variables are passed by an allowlist."""

import os
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from metier.telemetry.tracing import VARIABLE


def base_interpreter() -> str:
    """Return the Python that this virtual environment was created from."""
    # Not the one in the environment, whose folder lies in the project and can be written there.
    # The attribute is undocumented, so an interpreter may lack it.
    return getattr(sys, "_base_executable", "") or sys.executable


ORDINARY = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR", "TEMP", "TMP",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY", "no_proxy",
    "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "WINDIR", "USERPROFILE", "APPDATA",
    "LOCALAPPDATA", "PROGRAMDATA",
)  # fmt: skip
"""Variables that every program receives: locations and locale, no credentials."""

INDEX = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_*", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX",
    "UV_SYSTEM_CERTS",
    "UV_NATIVE_TLS", "UV_INSECURE_HOST", "UV_CACHE_DIR", "UV_LINK_MODE", "UV_OFFLINE", "UV_HTTP_TIMEOUT",
    "UV_KEYRING_PROVIDER", "XDG_CACHE_HOME", "XDG_DATA_HOME", "NETRC", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
    "http_proxy", "https_proxy", "all_proxy",
)  # fmt: skip
"""Variables that `uv` needs for its package index. They may contain credentials, so no script receives them."""

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

OWN_SECRETS = (
    "AGENT_*", "METIER_*", "ANTHROPIC_*", "OPENAI_*", "GEMINI_*", "GOOGLE_API_KEY", "DATABASE_URL", "STATE_STORE_*",
    "CELERY_*",
)  # fmt: skip
"""The agent's own secrets, which no wildcard matches. A skill that needs one must name it, so that the user sees it."""

MIN_PREFIX = 3
"""Minimum letters before a wildcard. Shorter patterns such as `*` or `A*` would pass too much; they match nothing."""


def build_environment(base: Mapping[str, str], allow: Iterable[str] = ()) -> dict[str, str]:
    """Return the ordinary variables of `base`, and those that `allow` names (`KALSHI_API_KEY`, `KALSHI_*`).

    PATH is always set and has only absolute folders: a relative one would mean the folder in which a child runs.
    """
    patterns = tuple(allow)
    passed = {name: value for name, value in base.items() if _matches(name, ORDINARY) or is_allowed(name, patterns)}
    # A proxy URL may contain a password, which programs must not see.
    passed |= {name: base[name] for name in PROXIES if name in base and not _has_password(base[name])}
    folders = [folder for folder in base.get("PATH", "").split(os.pathsep) if Path(folder).is_absolute()]
    return passed | {"PATH": os.pathsep.join(folders) or os.defpath}


def build_index_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of `uv` while it fetches the dependencies of a script."""
    return {name: value for name, value in base.items() if _matches(name, (*ORDINARY, *INDEX))}


def is_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Return True if a pattern names the variable, exactly or by a wildcard that is not too wide."""
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
        # Programs also accept `user:password@host:port` without a scheme, which `urlsplit` would take for a path.
        return "@" in urlsplit(url if "//" in url else f"//{url}").netloc
    except ValueError:
        return True


def build_trace_variables(trace_parent: str) -> dict[str, str]:
    """Return the variable from which OpenTelemetry reads the parent span; empty if tracing is off."""
    return {VARIABLE: trace_parent} if trace_parent else {}
