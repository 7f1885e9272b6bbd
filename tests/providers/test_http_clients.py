"""The HTTP clients of a host, and what a request carries that is put together once."""

import gzip
import json

import pytest
from vendors import VENDORS, Vendor, ask
from wire_server import Answer, WireServer

from metier.providers.transport import HttpClients


@pytest.mark.anyio
async def test_a_client_serves_a_few_runs_at_a_time_and_the_runs_after_them() -> None:
    clients = HttpClients()

    lent = [clients.lend() for _ in range(9)]
    for client in lent:
        clients.give_back(client)
    later = [clients.lend() for _ in range(9)]
    await clients.aclose()

    assert len(set(lent)) == 3
    assert set(later) == set(lent)
    assert all(client.is_closed for client in lent)


@pytest.mark.anyio
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.folder)
async def test_a_reply_that_the_server_compressed_unasked_is_read(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("text"))
    async with vendor.opened(server.url) as provider:
        plain = await provider.reply(ask())
        body = gzip.compress(json.dumps(vendor.load("text")).encode())
        server.will_answer(Answer(body=body, headers={"Content-Encoding": "gzip"}))

        assert await provider.reply(ask()) == plain


@pytest.mark.anyio
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.folder)
async def test_a_request_names_its_host_and_its_length(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("text"))
    async with vendor.opened(server.url) as provider:
        await provider.reply(ask("one"))
        await provider.reply(ask("a longer one"))

    for received in server.received:
        assert received.headers["host"] == server.url.removeprefix("http://")
        assert received.headers["content-length"] == str(len(received.raw))
