"""Snapshots of every request body that we send, in `tests/fixtures/provider_requests/`.

Run with `WRITE_REQUESTS=1` to write them anew, then read the difference before you commit it.
"""

import json
import os
from pathlib import Path
from typing import cast

import pytest
from vendors import FIXTURES, KEY, NAMES, VENDORS, Vendor, ask
from wire_server import WireServer, whole

from metier.messages import (
    MediaPart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    assistant,
    user,
)
from metier.providers.base import ModelRequest, OneTool, SystemBlock

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("vendor", VENDORS, ids=NAMES)]

REQUESTS = FIXTURES.parent / "provider_requests"

SYSTEM = (SystemBlock("You tidy notes."), SystemBlock("Skills: notes, tax.", cache=True), SystemBlock("Today: Sunday."))
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}

LOOSE_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "$defs": {"days": {"type": "array", "items": {"type": "integer", "minimum": 1}}},
}
"""A schema as users write it: with limits on values, and open objects."""


def said(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts)


def told(*parts: Part) -> Message:
    return Message(role="tool", parts=parts)


SEARCH = ToolCallPart(id="call_a", name="notes.search", arguments={"query": "tax"})
READ = ToolCallPart(id="call_b", name="Read", arguments={"path": "a b.md"})
WORK = (
    user("Tidy the notes"),
    said(TextPart(text="I look at both."), SEARCH, READ),
    told(
        ToolResultPart(call_id="call_b", name="Read", text="No such file", is_error=True),
        ToolResultPart(call_id="call_a", name="notes.search", text="2 found"),
    ),
    assistant("Two notes on tax."),
    user("Go on"),
)

FOREIGN = (
    user("Tidy the notes"),
    said(
        ThinkingPart(text="Hmm", signature="c2ln", provider="anthropic"),
        ThinkingPart(signature="redacted:c2VhbGVk", provider="anthropic"),
        ThinkingPart(text="Well", signature="gemini:model-1:Z2Vt", provider="gemini"),
        ThinkingPart(text="Other model", signature="gemini:model-0:Z2Vt", provider="gemini"),
        ThinkingPart(
            text="So",
            signature=json.dumps({"model": "model-1", "id": "rs_1", "encrypted_content": "b3Bl"}),
            provider="openai",
        ),
        ThinkingPart(
            text="So once",
            signature=json.dumps({"model": "model-0", "id": "rs_0", "encrypted_content": "b3Bl"}),
            provider="openai",
        ),
        ToolCallPart(
            id="server:tool/call with spaces", name="Read", arguments={"path": "a"}, signature="gemini:model-1:Z2Vt"
        ),
        ToolCallPart(id="x" * 90, name="github/issues", arguments={"n": 1}, signature="gemini:model-0:b2xk"),
    ),
    told(ToolResultPart(call_id="server:tool/call with spaces", name="Read", text="one")),
    user("What about the other?"),
    told(ToolResultPart(call_id="x" * 90, name="github/issues", text="two")),
    told(ToolResultPart(call_id="gone", name="Bash", text="a result whose call was trimmed")),
)

INTERRUPTED = (
    assistant("(the beginning was trimmed)"),
    user("Go"),
    said(SEARCH, READ),
    told(ToolResultPart(call_id="call_b", name="Read", text="")),
    said(SEARCH),
    user("   "),
    assistant("Well"),
    assistant("so far"),
)

PHOTO = MediaPart(media_type="image/png", digest="a" * 64, name="photo.png", width=2, height=2)
PAPER = MediaPart(media_type="application/pdf", digest="b" * 64, name="paper.pdf", pages=1)
LOST = MediaPart(media_type="image/png", digest="c" * 64, name="lost.png", width=2, height=2)
PICTURES = (
    Message(role="user", parts=(TextPart(text="Compare these"), PHOTO, PAPER, LOST)),
    said(READ),
    told(ToolResultPart(call_id="call_b", name="Read", text="[image/png: shown to you]", media=(PHOTO,))),
)

CASES: dict[str, ModelRequest] = {
    "pictures": ask(messages=PICTURES, media={PHOTO.digest: b"png bytes", PAPER.digest: b"pdf bytes"}),
    "plain": ask(tools=()),
    "work": ask(messages=WORK, system=SYSTEM, temperature=0.2),
    "foreign": ask(messages=FOREIGN),
    "interrupted": ask(messages=INTERRUPTED, tools=()),
    "forced_tool": ask(tool_choice=OneTool("notes.search")),
    "any_tool": ask(tool_choice="required"),
    "no_tool": ask(tool_choice="none"),
    "schema": ask(tools=(), response_schema=SCHEMA),
    "schema_and_tools": ask(model="gemini-3-flash", response_schema=LOOSE_SCHEMA),
}


@pytest.mark.parametrize("case", CASES)
async def test_request_body_matches_the_snapshot(server: WireServer, vendor: Vendor, case: str) -> None:
    server.will_answer(vendor.answer("text"))

    async with vendor.opened(server.url) as provider:
        await provider.reply(CASES[case])

    check_snapshot(vendor, case, server.received[0].body)


async def test_streamed_request_body_matches_the_snapshot(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.streamed("calls"))

    async with vendor.opened(server.url) as provider:
        await provider.reply(CASES["plain"], observe=lambda _: None)

    check_snapshot(vendor, "streamed", server.received[0].body)


async def test_thinking_is_returned_unchanged(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("thinking"))

    async with vendor.opened(server.url) as provider:
        reply = await provider.reply(ask(model="gpt-5.6-luna" if vendor.provider == "openai" else "gemini-3-flash"))
        result = told(ToolResultPart(call_id="call_a", name="Read", text="text of a"))
        history = (user("Tidy the notes"), Message(role="assistant", parts=reply.parts), result)
        model = server.received[0].body.get("model") or "gemini-3-flash"
        await provider.reply(ask(messages=history, model=model))

    check_snapshot(vendor, "thinking", server.received[1].body)


async def test_tokens_are_counted_by_the_vendor_if_it_supports_counting(server: WireServer, vendor: Vendor) -> None:
    answers = {"anthropic": {"input_tokens": 42}, "gemini": {"totalTokens": 42}, "openai": {"input_tokens": 42}}
    server.will_answer(whole(answers[vendor.provider]))

    async with vendor.opened(server.url) as provider:
        counted = await provider.count_tokens(CASES["work"])

    if vendor.folder == "openai_chat":
        assert (counted, server.received) == (None, [])
    else:
        assert counted == 42
        check_snapshot(vendor, "count", server.received[0].body)


async def test_base_url_and_key_are_where_the_vendor_expects_them(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("text"))

    async with vendor.opened(server.url + "/gateway") as provider:
        await provider.reply(ask())

    paths = {
        "anthropic": "/gateway/v1/messages",
        "gemini": "/gateway/v1/models/model-1:generateContent",
        "openai_chat": "/gateway/chat/completions",
        "openai_responses": "/gateway/responses",
    }
    header = {"gemini": ("x-goog-api-key", KEY)}.get(vendor.provider, ("authorization", f"Bearer {KEY}"))
    assert server.received[0].path == paths[vendor.folder]
    assert server.received[0].headers[header[0]] == header[1]


async def test_growing_history_is_sent_like_a_rebuilt_one(server: WireServer, vendor: Vendor) -> None:
    server.will_answer(vendor.answer("text"))
    messages: list[Message] = [user("Start")]
    async with vendor.opened(server.url) as kept:
        for number in range(6):
            call = ToolCallPart(id=f"call_{number % 4}", name="Read", arguments={"path": str(number)})  # ids come again
            result = ToolResultPart(call_id=call.id, name="Read", text=f"text {number}")
            messages += [said(TextPart(text=f"step {number}"), call), told(result)]
            async with vendor.opened(server.url) as fresh:
                await kept.reply(ask(messages=tuple(messages), system=SYSTEM))
                await fresh.reply(ask(messages=tuple(messages), system=SYSTEM))
        # A history that lost its middle is another history.
        trimmed = (messages[0], *messages[5:])
        async with vendor.opened(server.url) as fresh:
            await kept.reply(ask(messages=trimmed, system=SYSTEM))
            await fresh.reply(ask(messages=trimmed, system=SYSTEM))

    bodies = [each.body for each in server.received]
    assert bodies[::2] == bodies[1::2]
    assert len(bodies) == 14


def check_snapshot(vendor: Vendor, case: str, body: dict[str, object]) -> None:
    file = REQUESTS / vendor.folder / f"{case}.json"
    if os.environ.get("WRITE_REQUESTS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert body == load(file)


def load(file: Path) -> dict[str, object]:
    return cast("dict[str, object]", json.loads(file.read_text(encoding="utf-8")))


async def test_older_gemini_models_get_no_schema_with_tools(server: WireServer, vendor: Vendor) -> None:
    if vendor.provider != "gemini":
        return
    server.will_answer(vendor.answer("text"))

    async with vendor.opened(server.url) as provider:
        await provider.reply(ask(model="gemini-2.5-flash", response_schema=LOOSE_SCHEMA))

    config = cast("dict[str, object]", server.received[0].body["generationConfig"])
    assert "responseJsonSchema" not in config
