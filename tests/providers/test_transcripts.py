"""Any history is converted to one that every vendor accepts; tool names survive a round trip."""

import json
import re
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from metier.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, user
from metier.providers import anthropic as anthropic_wire
from metier.providers import gemini as gemini_wire
from metier.providers.base import ModelRequest
from metier.providers.facts import ModelFacts
from metier.providers.openai import chat_wire as openai_chat_wire
from metier.providers.openai import responses_wire as openai_responses_wire
from metier.providers.transcript import HistoryCache
from metier.providers.wire import Wire, own_names, wire_name

FACTS = ModelFacts(signs_calls=True, reasons=True)

ids = st.sampled_from(["call_a", "call_b", "call/with:odd chars", "y" * 70, "ä"])
names = st.sampled_from(["Read", "notes.search", "github/issues"])
texts = st.sampled_from(["", "  ", "hello", "你好\u2028", '"quoted"\\'])
parts = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(ThinkingPart, text=texts, signature=texts, provider=st.sampled_from(["anthropic", "gemini", "openai"])),
    st.builds(ToolCallPart, id=ids, name=names, arguments=st.just({"path": "a"}), signature=texts),
    st.builds(ToolResultPart, call_id=ids, name=names, text=texts, is_error=st.booleans()),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    roles: list[Role] = draw(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), max_size=8))
    return tuple(Message(role=role, parts=tuple(draw(st.lists(parts, max_size=4)))) for role in roles)


def request(messages: tuple[Message, ...]) -> ModelRequest:
    return ModelRequest(model="model-1", messages=messages)


def decode(body: bytes, key: str) -> list[Wire]:
    return cast("list[Wire]", json.loads(body)[key])


def blocks(message: Wire, key: str) -> list[Wire]:
    return cast("list[Wire]", message[key])


def pairs(sent: list[Wire], key: str) -> list[tuple[Wire, Wire]]:
    """Return each message with its successor; the last with an empty one."""
    end: Wire = {key: []}
    return list(zip(sent, [*sent[1:], end], strict=True))


def check_turns(roles: list[object], assistant: str) -> None:
    assert roles == ["user" if index % 2 == 0 else assistant for index in range(len(roles))]
    assert not roles or roles[-1] == "user"


@settings(max_examples=examples(300), deadline=None)
@given(histories())
def test_any_history_is_valid_for_anthropic(messages: tuple[Message, ...]) -> None:
    sent = decode(anthropic_wire.build_count_body(request(messages), HistoryCache()), "messages")

    check_turns([message["role"] for message in sent], "assistant")
    seen: set[object] = set()
    for before, after in pairs(sent, "content"):
        assert all(block["text"] for block in blocks(before, "content") if block["type"] == "text")
        calls = [block["id"] for block in blocks(before, "content") if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in blocks(after, "content") if block["type"] == "tool_result"]
        assert calls == results[: len(calls)] == results
        assert seen.isdisjoint(calls)
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(each)) for each in calls)
        seen.update(calls)


@settings(max_examples=examples(300), deadline=None)
@given(histories())
def test_any_history_is_valid_for_gemini(messages: tuple[Message, ...]) -> None:
    sent = decode(gemini_wire.build_body(request(messages), FACTS, HistoryCache()), "contents")

    for before, after in pairs(sent, "parts"):
        calls = [cast("Wire", part["functionCall"])["id"] for part in blocks(before, "parts") if "functionCall" in part]
        answers = [part for part in blocks(after, "parts") if "functionResponse" in part]
        assert calls == [cast("Wire", part["functionResponse"])["id"] for part in answers]
        signed = [part for part in blocks(before, "parts") if "functionCall" in part]
        assert not signed or "thoughtSignature" in signed[0]


@settings(max_examples=examples(300), deadline=None)
@given(histories())
def test_any_history_is_valid_for_openai_chat(messages: tuple[Message, ...]) -> None:
    body = openai_chat_wire.build_body(request(messages), FACTS, HistoryCache(), stream=False, own_server=False)

    waiting: list[object] = []
    for message in decode(body, "messages"):
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
        else:
            assert waiting == []
        waiting.extend(call["id"] for call in cast("list[Wire]", message.get("tool_calls", [])))
        assert message["role"] == "tool" or message["content"] is not None or message.get("tool_calls")
    assert waiting == []


@settings(max_examples=examples(300), deadline=None)
@given(histories())
def test_any_history_is_valid_for_openai_responses(messages: tuple[Message, ...]) -> None:
    sent = decode(openai_responses_wire.build_body(request(messages), FACTS, HistoryCache(), stream=False), "input")

    calls = [item["call_id"] for item in sent if item["type"] == "function_call"]
    results = [item["call_id"] for item in sent if item["type"] == "function_call_output"]
    assert len(set(calls)) == len(calls)
    assert calls == results


@settings(max_examples=examples(200), deadline=None)
@given(histories(), st.integers(0, 8), histories())
def test_cache_does_not_change_the_sent_request(
    first: tuple[Message, ...], kept: int, more: tuple[Message, ...]
) -> None:
    cache = HistoryCache(pieces=5, histories=2)
    base = (user("Go"), *first, *first)
    for messages in (base, (*base, *more), (*base[:kept], *more), base, more):
        sent = anthropic_wire.build_count_body(request(messages), cache)
        assert sent == anthropic_wire.build_count_body(request(messages), HistoryCache())


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.text(alphabet="ab1_-./:ä ", min_size=1, max_size=80), min_size=1, max_size=6, unique=True))
def test_tool_names_are_safe_unique_and_reversible(tools: list[str]) -> None:
    wires = [wire_name(name) for name in tools]

    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", wire) for wire in wires)
    assert len(set(wires)) == len(tools)
    assert [own_names(tools)[wire] for wire in wires] == tools


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("Read", "Read"),
        ("script_run", "script_run"),
        ("notes.search", "notes__search"),
        ("github/issues", "github___issues"),
        ("a.b/c-d", "a__b___c-d"),
    ],
)
def test_common_names_stay_readable(name: str, wire: str) -> None:
    assert wire_name(name) == wire


def test_name_that_resembles_a_mapped_one_is_mapped_too() -> None:
    mapped = wire_name("a__b")

    assert mapped != "a__b"
    assert wire_name(mapped) != mapped
    assert wire_name("a.b") == "a__b"


def test_unsupported_part_leaves_no_trace() -> None:
    nothing: tuple[Part, ...] = (ThinkingPart(text="x", provider="other"), TextPart(text=" "))
    messages = (user("Go"), Message(role="assistant", parts=nothing), user("Go on"))

    sent = decode(anthropic_wire.build_count_body(request(messages), HistoryCache()), "messages")

    assert sent == [{"role": "user", "content": [{"type": "text", "text": "Go"}, {"type": "text", "text": "Go on"}]}]
