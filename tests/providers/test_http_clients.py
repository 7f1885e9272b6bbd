"""The HTTP clients of a host, and what a request carries that is put together once."""

import gzip
import json
import socket
import threading

import pytest
from vendors import VENDORS, Vendor, ask
from wire_server import Answer, WireServer

from metier.providers.transport import HttpClients, open_http_client


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
    assert all(client.client.is_closed for client in lent)


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


@pytest.mark.anyio
async def test_head_and_body_of_a_request_arrive_in_one_piece() -> None:
    pieces: list[bytes] = []

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            pieces.append(connection.recv(1_000_000))
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=answer, args=(listening,), daemon=True)
        answering.start()
        client = open_http_client()
        request = client.client.build_request(
            "POST", f"http://127.0.0.1:{listening.getsockname()[1]}/", content=b"body"
        )
        response = await client.send(request)
        assert await response.aread() == b"ok"
        await client.aclose()
        answering.join(30)

    assert pieces[0].startswith(b"POST / HTTP/1.1\r\n")
    assert pieces[0].endswith(b"\r\n\r\nbody")


@pytest.mark.anyio
async def test_a_proxy_of_the_environment_is_asked_and_not_the_server(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    vendor = VENDORS[0]
    server.will_answer(vendor.answer("text"))
    async with vendor.opened("http://models.invalid") as provider:
        await provider.reply(ask())

    assert [received.headers["host"] for received in server.received] == ["models.invalid"]
