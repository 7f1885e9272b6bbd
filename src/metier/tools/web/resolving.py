"""Which addresses a host has, and whether they may be connected to: resolved once, and all of them checked."""

import socket
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import anyio

from metier.dataclass import dataclass
from metier.errors import ToolFailed
from metier.tools.web.address import parse_address
from metier.tools.web.url import WebUrl, check_address, check_domain, check_name


class Resolver(Protocol):
    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a name. Raises `OSError` when it has none."""
        ...


async def resolve_host(host: str, port: int) -> Sequence[str]:
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAccess:
    """Whom an agent may fetch from."""

    allowed_domains: tuple[str, ...] = ()
    """Empty: all. A domain stands for everything below it too."""
    denied_domains: tuple[str, ...] = ()
    open_addresses: Collection[tuple[str, int]] = ()
    """Addresses with ports that are open although they lie in a forbidden range, such as a server of a test."""
    open_hosts: Collection[tuple[str, int]] = ()
    """The same by name: servers that the user's own settings name."""


class Pinned(NamedTuple):
    """One request to one checked address of a host."""

    url: str
    headers: dict[str, str]
    extensions: dict[str, str]
    """So that the certificate is that of the name."""


def pin_url(url: WebUrl, address: str) -> Pinned:
    host = f"[{address}]" if ":" in address else address
    extensions = {} if url.address else {"sni_hostname": url.host}
    return Pinned(f"{url.scheme}://{host}:{url.port}{url.rest}", {"Host": url.authority}, extensions)


async def find_addresses(url: WebUrl, access: WebAccess, *, resolve: Resolver = resolve_host) -> list[str]:
    """What is connected to is one of these, not the name. Raises `ToolFailed` where one of them is not allowed."""
    check_domain(url, allowed=access.allowed_domains, denied=access.denied_domains)
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
    for address in addresses:
        if not is_open and (str(address), url.port) not in access.open_addresses:
            check_address(url, address)
    return [str(address) for address in addresses]
