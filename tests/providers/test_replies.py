"""Server replies: equal for every vendor, and nothing from half a message."""

import pytest
from msgspec import convert
from vendors import NAMES, VENDORS, Vendor, ask
from wire_server import Answer, WireServer, stream, whole

from metier.messages import Message, ModelReply, TextPart, ThinkingPart, ToolCallPart, Usage, user
from metier.providers.base import Delta
from metier.providers.failures import CallFailed, ConnectionLost, Overloaded, ReplyBroken, TimedOut

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("vendor", VENDORS, ids=NAMES)]

CALLS = (
    TextPart(text="I look at both."),
    ToolCallPart(id="call_a", name="notes.search", arguments={"query": "tax", "limit": 2}),
    ToolCallPart(id="call_b", name="Read", arguments={"path": "a b.md"}),
)


STOP_WORDS = {
    "anthropic": ("end_turn", "tool_use"),
    "gemini": ("STOP", "STOP"),
    "openai_chat": ("stop", "tool_calls"),
    "openai_responses": ("completed", "completed"),
}
"""The vendors' own words at the end of a text and of a reply with calls."""


def reply(vendor: Vendor, **fields: object) -> ModelReply:
    return convert({"provider": vendor.provider, "model": "model-1-20261001", **fields}, ModelReply)


async def test_text_is_parsed_equally_for_every_vendor(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("text"))

    async with vendor.opened(server.url) as provider:
        got = await provider.reply(ask())

    assert got == reply(
        vendor,
        parts=(TextPart(text="The notes are in order. Ünïcode — 你好 🎉"),),
        stop_reason="end",
        usage=Usage(input_tokens=120, output_tokens=12, cache_read_tokens=100),
        response_id="msg_01",
        finish_reason=STOP_WORDS[vendor.folder][0],
    )


async def test_parallel_calls_are_parsed_equally_for_every_vendor(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("calls"))

    async with vendor.opened(server.url) as provider:
        got = await provider.reply(ask())

    assert got == reply(
        vendor,
        parts=CALLS,
        stop_reason="tool_calls",
        usage=Usage(input_tokens=120, output_tokens=30),
        response_id="msg_02",
        finish_reason=STOP_WORDS[vendor.folder][1],
    )


async def test_streamed_reply_equals_the_unstreamed_one(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.streamed("calls"), vendor.answer("calls"))
    seen: list[Delta] = []

    async with vendor.opened(server.url) as provider:
        streamed = await provider.reply(ask(), observe=seen.append)
        at_once = await provider.reply(ask())

    assert streamed == at_once
    assert seen == [Delta("text", "I look "), Delta("text", "at both.")]


async def test_unstreamed_reply_to_a_streaming_request_is_read(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("calls"))

    async with vendor.opened(server.url) as provider:
        got = await provider.reply(ask(), observe=lambda _: None)

    assert got.parts == CALLS


@pytest.mark.parametrize(
    ("fixture", "stop_reason", "text"),
    [
        ("max_tokens", "max_tokens", "The first"),
        ("refusal", "refusal", "I cannot help with that."),
        ("empty", "end", ""),
    ],
)
async def test_stop_reasons_without_an_answer_are_distinguished(
    server: WireServer, vendor: Vendor, *, fixture: str, stop_reason: str, text: str
) -> None:
    server.will_answer(vendor.answer(fixture))

    async with vendor.opened(server.url) as provider:
        got = await provider.reply(ask())

    assert (got.stop_reason, got.parts) == (stop_reason, (TextPart(text=text),) if text else ())


async def test_arguments_that_are_not_an_object_are_kept_as_text(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("broken_arguments"))

    async with vendor.opened(server.url) as provider:
        got = await provider.reply(ask())

    assert got.parts == (ToolCallPart(id="call_a", name="Read", raw_arguments='{"path": "a'),)


async def test_reasoning_is_kept_with_the_call_and_counted(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("thinking"))

    async with vendor.opened(server.url) as provider:
        got = await provider.reply(ask())

    assert isinstance(got.parts[0], ThinkingPart)
    assert (got.parts[0].text, got.parts[0].provider) == ("Two files.", vendor.provider)
    assert [part.name for part in got.parts if isinstance(part, ToolCallPart)] == ["Read"]
    assert got.usage == Usage(input_tokens=9, output_tokens=25, reasoning_tokens=20)


@pytest.mark.parametrize("ending", ["reset", "close"])
async def test_broken_stream_is_a_failure_and_yields_no_call(server: WireServer, vendor: Vendor, ending: str) -> None:
    # Both calls are already complete in themselves when the connection goes.
    cut = -1 if vendor.folder != "anthropic" else -2
    server.will_answer(vendor.streamed("calls", ending="reset" if ending == "reset" else "close", cut_after=cut))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(ConnectionLost) as caught:
            await provider.reply(ask(), observe=lambda _: None)

    assert caught.value.retryable


async def test_stream_closed_cleanly_but_early_is_broken(server: WireServer, vendor: Vendor) -> None:
    events = 7 if vendor.folder == "openai_chat" else -1
    server.will_answer(vendor.streamed("calls", cut_after=events))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(ReplyBroken):
            await provider.reply(ask(), observe=lambda _: None)


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("ending", ["hang", "drip"])
async def test_endless_reply_ends_at_the_deadline(
    server: WireServer, vendor: Vendor, *, ending: str, observed: bool
) -> None:
    kind = "text/event-stream" if observed else "application/json"
    server.will_answer(Answer(content_type=kind, ending="hang" if ending == "hang" else "drip"))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(TimedOut):
            await provider.reply(ask(timeout_seconds=0.2), observe=(lambda _: None) if observed else None)


@pytest.mark.parametrize("observed", [True, False])
async def test_oversized_reply_is_cut_off(server: WireServer, vendor: Vendor, observed: bool) -> None:
    kind = "text/event-stream" if observed else "application/json"
    server.will_answer(Answer(content_type=kind, ending="flood"))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(ReplyBroken):
            await provider.reply(ask(), observe=(lambda _: None) if observed else None)


BROKEN = {
    "nothing": Answer(),
    "half a JSON": Answer(body=b'{"id": "x", "type": "mess'),
    "HTML": Answer(body=b"<html>Sign in</html>", content_type="text/html"),
    "a list": Answer(body=b"[]"),
    "another object": whole({"hello": "world"}),
    "not a number": Answer(body=b'{"usage": NaN}'),
    "not UTF-8": Answer(body=b'{"id": "\xff\xfe"}'),
    "too deep": Answer(body=b'{"a":' * 200_000),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
async def test_body_that_is_not_a_reply_is_broken(server: WireServer, vendor: Vendor, body: Answer) -> None:
    server.will_answer(body)

    async with vendor.opened(server.url) as provider:
        with pytest.raises(ReplyBroken):
            await provider.reply(ask())


async def test_lone_surrogate_is_replaced_and_can_be_sent_back(server: WireServer, vendor: Vendor) -> None:
    answer = vendor.answer("max_tokens")
    server.will_answer(Answer(body=answer.body.replace(b"The first", rb"\ud83d\ude00 \ud800!")))

    async with vendor.opened(server.url) as provider:
        got = await provider.reply(ask())
        await provider.reply(ask(messages=(user("Go"), Message(role="assistant", parts=got.parts), user("\ud800"))))

    assert got.parts == (TextPart(text="\U0001f600 \ufffd!"),)


async def test_event_that_is_not_json_is_broken(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(Answer(body=b"data: {oops\n\n", content_type="text/event-stream"))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(ReplyBroken):
            await provider.reply(ask(), observe=lambda _: None)


async def test_error_inside_a_stream_becomes_its_failure(server: WireServer, vendor: Vendor) -> None:
    words = {"type": "overloaded_error", "message": "Overloaded"}
    events: dict[str, list[object]] = {
        "anthropic": [{"type": "error", "error": words}],
        "gemini": [{"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded"}}],
        "openai_chat": [{"error": {**words, "code": None}}],
        "openai_responses": [{"type": "error", "code": "overloaded_error", "message": "Overloaded"}],
    }
    server.will_answer(stream(events[vendor.folder], named=True))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(Overloaded):
            await provider.reply(ask(), observe=lambda _: None)


async def test_line_separators_inside_text_do_not_break_a_stream(server: WireServer, vendor: Vendor) -> None:
    text = "one\u2028two\u2029three\x85four"
    answer = vendor.streamed("calls")
    server.will_answer(Answer(body=answer.body.replace(b"at both.", text.encode()), content_type=answer.content_type))
    seen: list[Delta] = []

    async with vendor.opened(server.url) as provider:
        await provider.reply(ask(), observe=seen.append)

    assert seen[-1] == Delta("text", text)


async def test_unreachable_server_is_a_lost_connection(server: WireServer, vendor: Vendor) -> None:
    async with vendor.opened("http://127.0.0.1:9") as provider:
        with pytest.raises(ConnectionLost):
            await provider.reply(ask())


async def test_sdk_does_not_retry(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(whole({"error": {"message": "oops"}}, status=500))

    async with vendor.opened(server.url) as provider:
        with pytest.raises(CallFailed):
            await provider.reply(ask())

    assert len(server.received) == 1
