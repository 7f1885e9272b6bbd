"""Every error status of every vendor maps to one of our failures."""

from datetime import UTC, datetime
from typing import cast

import httpx2
import pytest
from vendors import KEY, VENDORS, Vendor, ask
from wire_server import Answer, WireServer, whole

from metier.errors import ProviderError
from metier.events.payload import Payload
from metier.providers.connection import Server
from metier.providers.facts import load_facts
from metier.providers.failures import AuthFailed, BadRequest, CallFailed, RateLimited, ToolsUnsupported
from metier.providers.http_status import failure_of_status, parse_retry_after
from metier.providers.retry import RetryPolicy, Turn, reply_with_retries
from metier.providers.transport import exchange

type Case = tuple[int, object, dict[str, str], str]


def cases() -> list[tuple[Vendor, Case]]:
    return [
        (vendor, cast("Case", tuple(case)))
        for vendor in VENDORS
        for case in cast("list[list[object]]", vendor.load("errors"))
    ]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("vendor", "case"), cases(), ids=[f"{vendor.folder}-{case[0]}-{case[3]}" for vendor, case in cases()]
)
async def test_error_status_maps_to_its_failure(server: WireServer, vendor: Vendor, case: Case) -> None:
    status, body, headers, reason = case
    server.will_answer(whole(body, status=status, headers=headers))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(CallFailed) as caught:
            await provider.reply(ask())

    final = {"bad_request", "context_too_long", "auth_failed", "not_found", "quota_exhausted"}
    assert (caught.value.reason, caught.value.status) == (reason, status)
    assert caught.value.retryable == (reason not in final)
    assert (isinstance(caught.value, ProviderError), caught.value.exit_code) == (True, 8)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("folder", "seconds"), [("anthropic", 3.0), ("gemini", 17.0), ("openai_chat", 1.5), ("openai_responses", 1.5)]
)
async def test_retry_delay_of_the_server_is_read(server: WireServer, folder: str, seconds: float) -> None:
    vendor = next(each for each in VENDORS if each.folder == folder)
    case = next(case for each, case in cases() if each is vendor and case[3] == "rate_limited")
    server.will_answer(whole(case[1], status=429, headers=case[2]))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(RateLimited) as caught:
            await provider.reply(ask())

    assert caught.value.retry_after_seconds == seconds


@pytest.mark.anyio
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.folder)
async def test_error_page_is_shown_on_one_line_and_without_the_key(server: WireServer, vendor: Vendor) -> None:
    page = f"<html>\n<b>Bad \x1b[31mkey</b> {KEY} {'x' * 5000}"
    server.will_answer(Answer(body=page.encode(), status=401, content_type="text/html"))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(AuthFailed) as caught:
            await provider.reply(ask())

    message = caught.value.message
    assert message.isprintable()
    assert len(message) < 400
    assert KEY not in message
    assert "[key]" in message


@pytest.mark.anyio
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.folder)
@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (409, {}, "bad_request"),
        (503, {"x-should-retry": "false"}, "overloaded"),
        (429, {"x-should-retry": "false", "retry-after": "1"}, "rate_limited"),
    ],
)
async def test_conflicts_and_forbidden_retries_are_not_retried(
    server: WireServer, vendor: Vendor, status: int, headers: dict[str, str], reason: str
) -> None:
    server.will_answer(whole({"error": {"message": "not again"}}, status=status, headers=headers))
    told: list[Payload] = []
    turn = Turn(number=1, emit=told.append, policy=RetryPolicy(max_retries=3), facts=load_facts())

    async with vendor.opened(server.url) as provider:
        with pytest.raises(CallFailed) as caught:
            await reply_with_retries(provider, ask(), turn)

    assert (len(server.received), caught.value.reason, caught.value.retryable) == (1, reason, False)
    assert [each.event_type for each in told] == ["llm_request_sent", "llm_request_failed"]


def http_errors() -> list[type[httpx2.HTTPError]]:
    found = [cast("object", getattr(httpx2, name)) for name in httpx2.__all__]
    return [each for each in found if isinstance(each, type) and issubclass(each, httpx2.HTTPError)]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", http_errors(), ids=lambda kind: kind.__name__)
async def test_no_error_of_the_http_library_escapes(kind: type[httpx2.HTTPError]) -> None:
    response = httpx2.Response(500, request=httpx2.Request("POST", "http://here"))
    error = kind("x", request=response.request, response=response) if kind is httpx2.HTTPStatusError else kind("x")

    with pytest.raises(CallFailed), exchange("x", 5):
        raise error


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_milliseconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, now=datetime(2026, 11, 15, 12, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "registry.ollama.ai/library/gemma:2b does not support tools"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (500, "tools param requires --jinja flag"),
        (404, "No endpoints found that support tool use. To learn more about provider routing, visit the docs"),
        (400, "`tool calling` is not supported with this model"),
        (400, "Function calling is not enabled for models/gemma-3"),
        (400, "Unrecognized request argument supplied: tools"),
        (400, "tools are not supported"),
        (422, "Unsupported parameter: 'tools' is not supported with this model."),
    ],
)
def test_missing_tool_support_is_distinguished_from_an_invalid_request(status: int, message: str) -> None:
    server = Server("openai", "k")

    failure = failure_of_status(server, status, {"error": {"message": message}}, headers={})

    assert isinstance(failure, ToolsUnsupported)


@pytest.mark.parametrize(
    "message", ["Invalid schema for function 'Read': 'tools[0]' is wrong", "messages with role 'tool' must follow"]
)
def test_invalid_tool_request_is_not_mistaken_for_missing_tool_support(message: str) -> None:
    failure = failure_of_status(Server("openai", "k"), 400, {"error": {"message": message}}, headers={})

    assert type(failure) is BadRequest
