"""Anthropic's streams and pauses: interleaved blocks, and turns paused by the server."""

import json
from typing import cast

import pytest
from vendors import VENDORS, ask
from wire_server import WireServer, stream, whole

from metier.messages import TextPart, ToolCallPart, Usage
from metier.providers.base import Delta

pytestmark = pytest.mark.anyio

ANTHROPIC = next(vendor for vendor in VENDORS if vendor.folder == "anthropic")
CHAT = next(vendor for vendor in VENDORS if vendor.folder == "openai_chat")


def message(content: list[object], stop_reason: str, *, usage: tuple[int, int] = (10, 5)) -> dict[str, object]:
    counts = {"input_tokens": usage[0], "output_tokens": usage[1], "cache_read_input_tokens": 1}
    head = {"type": "message", "id": "m", "model": "model-1", "role": "assistant"}
    return {**head, "content": content, "stop_reason": stop_reason, "usage": counts}


SEARCHED: list[object] = [
    {"type": "text", "text": "I look it up. "},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "tax"}},
    {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
]


async def test_turn_paused_by_the_server_is_continued_as_one_reply(server: WireServer) -> None:
    rest: list[object] = [{"type": "text", "text": "Found."}]
    server.will_answer(whole(message(SEARCHED, "pause_turn")), whole(message(rest, "end_turn", usage=(20, 7))))

    async with ANTHROPIC.opened(server.url) as provider:
        got = await provider.reply(ask())

    first, second = (cast("list[object]", each.body["messages"]) for each in server.received)
    assert second == [*first, {"role": "assistant", "content": SEARCHED}]
    assert {**server.received[0].body, "messages": second} == server.received[1].body
    assert got.parts == (TextPart(text="I look it up. "), TextPart(text="Found."))
    assert got.stop_reason == "end"
    assert got.usage == Usage(input_tokens=32, output_tokens=12, cache_read_tokens=2)


async def test_turn_paused_repeatedly_ends(server: WireServer) -> None:
    server.will_answer(whole(message(SEARCHED, "pause_turn")))

    async with ANTHROPIC.opened(server.url) as provider:
        got = await provider.reply(ask())

    assert len(server.received) == 9
    assert got.stop_reason == "other"


async def test_interleaved_blocks_are_kept_separate(server: WireServer) -> None:
    def start(index: int, block: dict[str, object]) -> object:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, **fields: str) -> object:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    server.will_answer(
        stream(
            [
                {"type": "message_start", "message": message([], "")},
                start(0, {"type": "text", "text": ""}),
                start(1, {"type": "tool_use", "id": "a", "name": "Read", "input": {}}),
                start(2, {"type": "tool_use", "id": "b", "name": "Read", "input": {}}),
                delta(1, type="input_json_delta", partial_json='{"path": "on'),
                delta(0, type="text_delta", text="Both "),
                delta(2, type="input_json_delta", partial_json='{"path": "two'),
                delta(1, type="input_json_delta", partial_json='e"}'),
                {"type": "content_block_stop", "index": 1},
                delta(2, type="input_json_delta", partial_json='"}'),
                delta(0, type="text_delta", text="files."),
                {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
                {"type": "message_stop"},
            ]
        )
    )
    seen: list[Delta] = []

    async with ANTHROPIC.opened(server.url) as provider:
        got = await provider.reply(ask(), observe=seen.append)

    assert got.parts == (
        TextPart(text="Both files."),
        ToolCallPart(id="a", name="Read", arguments={"path": "one"}),
        ToolCallPart(id="b", name="Read", arguments={"path": "two"}),
    )
    assert [each.text for each in seen] == ["Both ", "files."]


async def test_calls_streamed_without_an_index_are_kept_separate(server: WireServer) -> None:
    def chunk(calls: list[dict[str, object]], finish: str | None = None) -> object:
        choice = {"index": 0, "delta": {"tool_calls": calls}, "finish_reason": finish}
        return {"id": "c", "model": "m", "choices": [choice]}

    def call(call_id: str, text: str, name: str = "") -> dict[str, object]:
        return {"id": call_id, "function": {"name": name, "arguments": text}}

    paths = [json.dumps({"path": name}) for name in ("one", "two")]
    server.will_answer(
        stream(
            [
                chunk([call("a", paths[0][:5], "Read")]),
                chunk([call("b", paths[1][:5], "Read")]),
                chunk([call("a", paths[0][5:])]),
                chunk([{"function": {"arguments": paths[1][5:]}}], "tool_calls"),
            ]
        )
    )

    async with CHAT.opened(server.url) as provider:
        got = await provider.reply(ask(), observe=lambda _: None)

    assert [part.arguments for part in got.parts if isinstance(part, ToolCallPart)] == [
        {"path": "one"},
        {"path": "two"},
    ]
