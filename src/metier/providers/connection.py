"""Addresses and credentials of model servers, and the HTTP clients shared by the runs of a host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from metier.providers.facts import FactBook
from metier.providers.options import ApiStyle


class Closeable(Protocol):
    async def aclose(self) -> None: ...


class SharedClients:
    """Clients shared by all runs of a host, created on first use and closed together.

    Imports no HTTP library, so that commands without network access don't load one. Bound to one event loop.
    """

    def __init__(self) -> None:
        self._opened: dict[type[Closeable], Closeable] = {}

    def get[Client: Closeable](self, kind: type[Client], make: Callable[[], Client]) -> Client:
        found = self._opened.get(kind)
        if not isinstance(found, kind):
            found = self._opened[kind] = make()
        return found

    async def aclose(self) -> None:
        while self._opened:
            _, client = self._opened.popitem()
            await client.aclose()


# A dataclass, not a Struct: providers of plugins get it, and its `repr` must not show the key.
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Address and credentials of a provider's server."""

    facts: FactBook
    key: str = field(default="", repr=False)
    base_url: str = ""
    """The vendor's own address if empty."""
    api: ApiStyle = "auto"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sent with every request, in addition to those of the format."""


# A dataclass, not a Struct: its `repr` must not show the key.
@dataclass(frozen=True, slots=True)
class Server:
    """The provider named in error messages, and the key that they must not contain."""

    provider: str
    key: str = field(default="", repr=False)
