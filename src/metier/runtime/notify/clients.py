"""HTTP clients for notifications: those of the host, so that a message needs no TLS context of its own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from metier.runtime.host import Host

if TYPE_CHECKING:
    import httpx2


class NoticeClients:
    """Clients, created at first use. They belong to the event loop that first used them."""

    def __init__(self) -> None:
        self._plain: httpx2.AsyncClient | None = None
        self._pinned: httpx2.AsyncClient | None = None

    def open_plain(self) -> "httpx2.AsyncClient":
        """Open a client for the address of the user's settings, with the environment's proxies."""
        import httpx2

        from metier.tls import load_context

        if self._plain is None:
            self._plain = httpx2.AsyncClient(verify=load_context(), follow_redirects=False, timeout=None)
        return self._plain

    def open_pinned(self) -> "httpx2.AsyncClient":
        """Open a client for checked addresses of callers.

        Proxies of the environment would resolve the name again, and elsewhere. No connection is kept: the pool knows
        one by its address alone, and the certificate of one host would answer for another at the same address.
        """
        import httpx2

        from metier.tls import load_context

        if self._pinned is None:
            limits = httpx2.Limits(max_keepalive_connections=0)
            self._pinned = httpx2.AsyncClient(
                verify=load_context(trust_env=False),
                trust_env=False,
                follow_redirects=False,
                timeout=None,
                limits=limits,
            )
        return self._pinned

    async def aclose(self) -> None:
        for client in (self._plain, self._pinned):
            if client is not None:
                await client.aclose()
        self._plain = self._pinned = None


@asynccontextmanager
async def using_clients(host: Host) -> AsyncGenerator[NoticeClients]:
    """Yield the host's clients, or new ones for this block."""
    if host.clients is not None:
        yield host.clients.get(NoticeClients, NoticeClients)
        return
    clients = NoticeClients()
    try:
        yield clients
    finally:
        await clients.aclose()
