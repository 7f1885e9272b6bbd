"""URLs that may be fetched: parsed strictly, so that no other reader of the same text sees another host. Pure."""

import re
import unicodedata
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, urljoin

from metier.dataclass import dataclass
from metier.errors import ToolFailed
from metier.lazy_regex import lazy_regex
from metier.tools.web.address import find_address, find_reason

MAX_URL_CHARACTERS = 8000
_URL = lazy_regex(
    r"(?P<scheme>https?)://(?P<host>\[[^\]/?#]*\]|[^:/?#@\[\]]*)(?::(?P<port>\d{1,5}))?(?P<rest>[/?].*)?", re.IGNORECASE
)
_LABEL = lazy_regex(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_HOST_CHARACTERS = 253
_PORTS = {"http": 80, "https": 443}
_FIRST_OPEN_PORT = 1024
_LOCAL_NAMES = ("localhost", "local", "internal", "localdomain", "home.arpa")
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zs", "Zl", "Zp"))
_SAFE = "/?:@!$&'()*+,;=-._~%[]"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebUrl:
    scheme: str
    host: str
    """Lower case, ASCII, without a final dot; an address in its one plain form, without brackets."""
    port: int
    rest: str
    """Path and query, beginning with a slash."""
    address: IPv4Address | IPv6Address | None
    """Where the host is one."""

    @property
    def authority(self) -> str:
        """As the `Host` header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.authority}{self.rest}"


def parse_url(text: str) -> WebUrl:
    """Raises `ToolFailed` for anything but a plain http or https address."""
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
        rest=quote(rest if rest.startswith("/") else f"/{rest}", safe=_SAFE),
        address=address,
    )


def join_url(base: WebUrl, target: str) -> WebUrl:
    """Where a redirect leads. Raises `ToolFailed` like `parse_url`."""
    if any(letter <= " " or letter == "\\" for letter in target):
        raise _refused(target, "contains a blank or a backslash")
    try:
        return parse_url(urljoin(base.text, target))
    except ValueError as error:
        raise _refused(target, "is not an address") from error


def check_name(url: WebUrl) -> None:
    """Refuse names that only mean something on this machine or its network."""
    labels = url.host.split(".")
    for name in _LOCAL_NAMES:
        parts = name.split(".")
        if url.address is None and labels[-len(parts) :] == parts:
            raise forbidden(url, "this machine or its network")


def check_address(url: WebUrl, address: IPv4Address | IPv6Address) -> None:
    if reason := find_reason(address):
        raise forbidden(url, reason)


def check_domain(url: WebUrl, *, allowed: tuple[str, ...], denied: tuple[str, ...]) -> None:
    """A domain stands for itself and everything below it. Denied wins; without allowed ones all are."""
    if any(_is_within(url.host, domain) for domain in denied):
        raise ToolFailed(f"Domain {url.host!r} is denied by the settings of this agent", code="permission_denied")
    if allowed and not any(_is_within(url.host, domain) for domain in allowed):
        raise ToolFailed(
            f"Domain {url.host!r} is not among those that this agent may fetch from", code="permission_denied"
        )


def forbidden(url: WebUrl, reason: str) -> ToolFailed:
    return ToolFailed(f"Host {url.host!r} leads to {reason}, which may not be fetched", code="permission_denied")


def _is_within(host: str, domain: str) -> bool:
    plain = domain.lower().removeprefix("*.").strip(".")
    return host == plain or host.endswith(f".{plain}")


def _parse_host(text: str, url: str) -> str:
    """One spelling for a name: full-width letters, circled digits and other dots become what a resolver would see."""
    if text.startswith("["):
        return text.lower()
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
