"""Allowed values of the headers `Host` and `Origin`. Pure.

This stops DNS rebinding: a page whose domain resolves to this server still sends its own domain as `Host`.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def build_allowed(*, host: str, port: int, named: Iterable[str]) -> frozenset[str]:
    """Return the allowed values of `Host`: loopback with the port, and the named hosts with and without it."""
    own = {f"{name}:{port}" for name in (*_LOOPBACK, *([_bracket(host)] if is_loopback(host) else []))}
    # Browsers leave out the default port.
    if port == 80:
        own |= set(_LOOPBACK)
    names = {name.lower().rstrip(".") for name in named}
    return frozenset(own | names | {f"{name}:{port}" for name in names if not _has_port(name)})


def is_allowed_host(value: str, allowed: frozenset[str]) -> bool:
    return value.lower() in allowed


def is_allowed_origin(value: str, allowed: frozenset[str]) -> bool:
    """Return whether an `Origin` is that of this server's pages. Sandboxed pages send `null`, which is not."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and is_allowed_host(parts.netloc, allowed)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _has_port(name: str) -> bool:
    return name.rpartition(":")[2].isdigit() and not name.endswith("]")
