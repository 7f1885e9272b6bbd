"""URLs that may be fetched, and the addresses of their hosts that may be connected to.

URLs are parsed strictly, so that no other parser sees a different host in the same text. A host is resolved once, and
all of its addresses are checked. The table of forbidden addresses is our own, because `ipaddress.is_private` differs
between Python versions.
"""

import re
import socket
import unicodedata
from collections.abc import Collection, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple, Protocol
from urllib.parse import quote, urljoin

import anyio
from msgspec import Struct

from metier.errors import ToolFailed

_FORBIDDEN_4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "a carrier's network",
    "127.0.0.0/8": "this machine",
    "168.63.129.16/32": "a cloud's metadata service",
    "169.254.0.0/16": "the local link, where metadata services are",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "a reserved network",
    "192.0.2.0/24": "a network for examples",
    "192.88.99.0/24": "a reserved network",
    "192.168.0.0/16": "a private network",
    "198.18.0.0/15": "a network for tests",
    "198.51.100.0/24": "a network for examples",
    "203.0.113.0/24": "a network for examples",
    "224.0.0.0/4": "many machines at once",
    "240.0.0.0/4": "a reserved network",
}
_GLOBAL_6 = "2000::/3"
"""All public addresses. The rest is forbidden without being listed, except for the two translations below."""
_FORBIDDEN_6 = {
    "2001::/23": "a reserved network or a tunnel",
    "2001:db8::/32": "a network for examples",
    "2002::/16": "a tunnel to an IPv4 address",
    "3fff::/20": "a network for examples",
}
_TRANSLATED_6 = ("::ffff:0:0/96", "64:ff9b::/96")
"""Prefixes of addresses that end in an IPv4 address and connect to it."""

_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")
_MAX_PARTS = 4
_MAX_ADDRESS = 2**32


def get_reason(address: IPv4Address | IPv6Address) -> str:
    """Return the kind of network that a forbidden address belongs to; empty for a public one."""
    if isinstance(address, IPv6Address):
        if any(address in IPv6Network(network) for network in _TRANSLATED_6):
            return get_reason(IPv4Address(address.packed[-4:]))
        if address not in IPv6Network(_GLOBAL_6):
            return "this machine or a private network"
        return next((reason for network, reason in _FORBIDDEN_6.items() if address in IPv6Network(network)), "")
    return next((reason for network, reason in _FORBIDDEN_4.items() if address in IPv4Network(network)), "")


def parse_address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address of a resolver. Raises `ValueError`."""
    return IPv6Address(text.split("%", 1)[0]) if ":" in text else IPv4Address(text)


def find_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a URL's host means, in any form that resolvers accept; None for a name.

    An IPv4-mapped IPv6 address is returned as IPv4, because connections to it use IPv4. Raises `ValueError`
    for a host that ends like an address and is invalid.
    """
    if host.startswith("["):
        return _parse_bracketed(host)
    # Resolvers also take `127.1`, `0x7f.1`, `017700000001` and `2130706433` for an address, so the checks must too.
    parts = host.removesuffix(".").split(".")
    if not _is_number(parts[-1]):
        return None
    if len(parts) > _MAX_PARTS:
        raise ValueError(host)
    numbers = [_parse_number(part) for part in parts]
    *first, last = numbers
    if any(number > 255 for number in first) or last >= 256 ** (_MAX_PARTS + 1 - len(numbers)):
        raise ValueError(host)
    value = sum(number << 8 * (_MAX_PARTS - 1 - place) for place, number in enumerate(first)) + last
    return IPv4Address(value % _MAX_ADDRESS)


def _parse_bracketed(host: str) -> IPv4Address | IPv6Address:
    try:
        # `%` starts a zone index, which names a network interface of this machine.
        address = IPv6Address(host[1:-1] if host.endswith("]") and "%" not in host else "")
    except AddressValueError as error:
        raise ValueError(host) from error
    return address.ipv4_mapped or address


def _is_number(part: str) -> bool:
    return part[:1].isdigit() and (part.isdigit() or part[:2].lower() == "0x")


def _parse_number(part: str) -> int:
    # `int` also takes `1_27`, `+1` and `0o177`, which no resolver does.
    if not _NUMBER.fullmatch(part):
        raise ValueError(part)
    if part[:2].lower() == "0x":
        return int(part[2:] or "0", 16)
    # Resolvers read a leading zero as octal. Reading it as decimal would check another address than is connected to.
    return int(part, 8) if part.startswith("0") and len(part) > 1 else int(part, 10)


MAX_URL_CHARACTERS = 8000
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]/?#]*\]|[^:/?#@\[\]]*)(?::(?P<port>\d{1,5}))?(?P<rest>[/?].*)?", re.IGNORECASE
)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_HOST_CHARACTERS = 253
_PORTS = {"http": 80, "https": 443}
_FIRST_OPEN_PORT = 1024
"""Lower ports belong to services such as SSH or SMTP, which could take an HTTP request for commands."""
_LOCAL_NAMES = ("localhost", "local", "internal", "localdomain", "home.arpa")
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zs", "Zl", "Zp"))
_SAFE = "/?:@!$&'()*+,;=-._~%[]"


class WebUrl(Struct, frozen=True, kw_only=True):
    scheme: str
    host: str
    """Lower-case ASCII without a final dot; an address in canonical form without brackets."""
    port: int
    rest: str
    """Path and query, starting with a slash."""
    address: IPv4Address | IPv6Address | None
    """The host as an address, if it is one."""

    @property
    def authority(self) -> str:
        """Host and port for the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.authority}{self.rest}"


class WebAccess(Struct, frozen=True, kw_only=True):
    """The hosts that an agent may fetch from."""

    allowed_domains: tuple[str, ...] = ()
    """Allowed domains with their subdomains; empty for all."""
    denied_domains: tuple[str, ...] = ()
    open_addresses: Collection[tuple[str, int]] = ()
    """Addresses with ports that are allowed although they are in a forbidden range, such as a test server."""
    open_hosts: Collection[tuple[str, int]] = ()
    """The same by name, for servers in the user's settings."""


def parse_url(text: str) -> WebUrl:
    """Parse a URL. Raises `ToolFailed` for anything but a plain http or https URL."""
    plain = text.partition("#")[0]
    if len(text) > MAX_URL_CHARACTERS:
        raise _refused(text, "is too long")
    if any(letter <= " " or letter in '\\"<>^`{|}\x7f' or unicodedata.category(letter) in _UNSEEN for letter in text):
        raise _refused(text, "contains a blank, a backslash or a character that does not belong there")
    found = _URL.fullmatch(plain)
    if found is None:
        raise _refused(text, "is not a plain http or https address; user names are not allowed either")
    scheme, host = found["scheme"].lower(), _parse_host(found["host"], text)
    try:
        address = find_address(host)
    except ValueError as error:
        raise _refused(text, "has a host that is neither a name nor an address") from error
    rest = found["rest"] or "/"
    return WebUrl(
        scheme=scheme,
        host=str(address) if address else host,
        port=_parse_port(found["port"], scheme, text),
        # `%` is among the safe characters, because the path may already be encoded.
        rest=quote(rest if rest.startswith("/") else f"/{rest}", safe=_SAFE),
        address=address,
    )


def join_url(base: WebUrl, target: str) -> WebUrl:
    """Resolve the target of a redirect. Raises `ToolFailed` like `parse_url`."""
    if any(letter <= " " or letter == "\\" for letter in target):
        raise _refused(target, "contains a blank or a backslash")
    try:
        return parse_url(urljoin(base.text, target))
    except ValueError as error:
        raise _refused(target, "is not an address") from error


def check_name(url: WebUrl) -> None:
    """Raise `ToolFailed` for names that only exist on this machine or its network."""
    labels = url.host.split(".")
    for name in _LOCAL_NAMES:
        parts = name.split(".")
        if url.address is None and labels[-len(parts) :] == parts:
            raise forbidden(url, "this machine or its network")


def check_address(url: WebUrl, address: IPv4Address | IPv6Address) -> None:
    if reason := get_reason(address):
        raise forbidden(url, reason)


def check_domain(url: WebUrl, access: WebAccess) -> None:
    """Raise `ToolFailed` for a domain that is denied or not allowed, including subdomains. Deny beats allow."""
    if any(_is_within(url.host, domain) for domain in access.denied_domains):
        raise ToolFailed(f"Domain {url.host!r} is denied by the settings of this agent", code="permission_denied")
    if access.allowed_domains and not any(_is_within(url.host, domain) for domain in access.allowed_domains):
        raise ToolFailed(
            f"Domain {url.host!r} is not among those that this agent may fetch from", code="permission_denied"
        )


def forbidden(url: WebUrl, reason: str) -> ToolFailed:
    return ToolFailed(f"Host {url.host!r} leads to {reason}, which may not be fetched", code="permission_denied")


def _is_within(host: str, domain: str) -> bool:
    plain = domain.lower().removeprefix("*.").strip(".")
    return host == plain or host.endswith(f".{plain}")


def _parse_host(text: str, url: str) -> str:
    """Return the name that a resolver would see: full-width letters, circled digits and other dots are normalized."""
    if text.startswith("["):
        return text.lower()
    # NFKC first, because IDNA does it too: what is checked must be the name that is looked up.
    host = unicodedata.normalize("NFKC", text).lower().replace("\u3002", ".").removesuffix(".")
    try:
        plain = host.encode("idna").decode("ascii").lower() if not host.isascii() else host
    except UnicodeError as error:
        raise _refused(url, "has a host that is not a name") from error
    if not plain or len(plain) > _MAX_HOST_CHARACTERS or not all(_LABEL.fullmatch(part) for part in plain.split(".")):
        raise _refused(url, "has a host that is not a name")
    return plain


def _parse_port(text: str | None, scheme: str, url: str) -> int:
    port = int(text) if text else _PORTS[scheme]
    if port not in _PORTS.values() and not _FIRST_OPEN_PORT <= port <= 0xFFFF:
        raise _refused(url, f"names port {port}; only 80, 443 and those from {_FIRST_OPEN_PORT} are open")
    return port


def _refused(text: str, reason: str) -> ToolFailed:
    return ToolFailed(f"URL {text[:200]!r} {reason}", code="permission_denied")


class Resolver(Protocol):
    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name. Raises `OSError` if it has none."""
        ...


async def resolve_host(host: str, port: int) -> Sequence[str]:
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Pinned(NamedTuple):
    """A request to a checked address of a host."""

    url: str
    headers: dict[str, str]
    extensions: dict[str, str]
    """The server name for TLS, so that the certificate is checked for the host's name."""


def pin_url(url: WebUrl, address: str) -> Pinned:
    # Connect to the checked address and not to the name: another lookup could return another address (DNS rebinding).
    host = f"[{address}]" if ":" in address else address
    extensions = {} if url.address else {"sni_hostname": url.host}
    return Pinned(f"{url.scheme}://{host}:{url.port}{url.rest}", {"Host": url.authority}, extensions)


async def list_addresses(url: WebUrl, access: WebAccess, *, resolve: Resolver = resolve_host) -> list[str]:
    """Return the addresses to connect to instead of the name. Raises `ToolFailed` if one of them is not allowed."""
    check_domain(url, access)
    is_open = (url.host, url.port) in access.open_hosts
    if not is_open:
        check_name(url)
    try:
        texts = [str(url.address)] if url.address else await resolve(url.host, url.port)
        addresses = [parse_address(text) for text in texts]
    except (OSError, ValueError) as error:
        raise ToolFailed(f"Host {url.host!r} was not found", code="not_found") from error
    if not addresses:
        raise ToolFailed(f"Host {url.host!r} was not found", code="not_found")
    # Check all of them: if a name had a public and a private address, a later attempt could reach the private one.
    for address in addresses:
        if not is_open and (str(address), url.port) not in access.open_addresses:
            check_address(url, address)
    return [str(address) for address in addresses]
