"""HTTP clients of providers: headers, compressed replies, proxies."""

import gzip
import json

import pytest
from vendors import VENDORS, Vendor, ask
from wire_server import Answer, WireServer


@pytest.mark.anyio
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.folder)
async def test_an_unrequested_compressed_reply_is_decoded(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("text"))
    async with vendor.opened(server.url) as provider:
        plain = await provider.reply(ask())
        body = gzip.compress(json.dumps(vendor.load("text")).encode())
        server.will_answer(Answer(body=body, headers={"Content-Encoding": "gzip"}))

        assert await provider.reply(ask()) == plain


@pytest.mark.anyio
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.folder)
async def test_a_request_has_host_and_content_length_headers(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("text"))
    async with vendor.opened(server.url) as provider:
        await provider.reply(ask("one"))
        await provider.reply(ask("a longer one"))

    for received in server.received:
        assert received.headers["host"] == server.url.removeprefix("http://")
        assert received.headers["content-length"] == str(len(received.raw))


@pytest.mark.anyio
async def test_a_proxy_from_the_environment_is_used(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    vendor = VENDORS[0]
    server.will_answer(vendor.answer("text"))
    async with vendor.opened("http://models.invalid") as provider:
        await provider.reply(ask())

    assert [received.headers["host"] for received in server.received] == ["models.invalid"]
