"""What a provider needs to reach its server, and the HTTP clients that a host shares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from metier.providers.facts import FactBook
from metier.providers.options import ApiStyle


class Closeable(Protocol):
    async def aclose(self) -> None: ...


class SharedClients:
    """Clients that belong to a host and are shared by its runs: each is made at first use, all are closed together.

    Knows no library, so that a host which asks no model loads none. Belongs to the event loop that first used it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where to connect and as whom."""

    facts: FactBook
    key: str = field(default="", repr=False)
    base_url: str = ""
    """Empty: the vendor's own address."""
    api: ApiStyle = "auto"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sent with every request, beside those that the format asks for."""


@dataclass(frozen=True, slots=True)
class Server:
    """Who an error message is about, and the secret it must not contain."""

    provider: str
    key: str = field(default="", repr=False)
