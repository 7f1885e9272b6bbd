"""Messages use the host's clients: one TLS context for all, and no connection shared by two hosts."""

from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from metier.providers.connection import SharedClients
from metier.runtime.host import Host
from metier.runtime.notify.delivery import using_clients
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE

pytestmark = pytest.mark.anyio


def build_host(folder: Path, clients: SharedClients | None) -> Host:
    return Host(settings=Settings(), workspace=folder, home=folder, environ={}, trust=MADE_HERE, clients=clients)


async def test_messages_of_one_host_share_a_client_that_is_closed_with_it(tmp_path: Path) -> None:
    shared = SharedClients()
    host = build_host(tmp_path, shared)

    async with using_clients(host) as first, using_clients(host) as second:
        pinned, plain = first.open_pinned(), first.open_plain()
        assert second.open_pinned() is pinned
        assert second.open_plain() is plain

    assert not pinned.is_closed
    assert not plain.is_closed
    await shared.aclose()
    assert pinned.is_closed
    assert plain.is_closed


async def test_host_without_shared_clients_closes_the_client_of_each_message(tmp_path: Path) -> None:
    async with using_clients(build_host(tmp_path, None)) as clients:
        client = clients.open_pinned()

    assert client.is_closed


async def test_connections_to_checked_addresses_are_not_reused(tmp_path: Path) -> None:
    met: list[str] = []

    async def answer(stream: SocketStream) -> None:
        async with stream:
            met.append("a connection")
            while await _has_request(stream):
                await stream.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with (
        listener,
        anyio.create_task_group() as group,
        using_clients(build_host(tmp_path, None)) as clients,
    ):
        group.start_soon(listener.serve, answer)
        address = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/"
        with anyio.fail_after(100):
            for _ in range(2):
                assert (await clients.open_pinned().get(address)).is_success
        group.cancel_scope.cancel()

    assert len(met) == 2


async def _has_request(stream: SocketStream) -> bool:
    try:
        return bool(await stream.receive())
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return False
