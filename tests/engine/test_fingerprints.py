"""The hash of a request depends only on the request, and 0.2 hashes are still recognized."""

import hashlib

from metier.engine.turn_cache import Fingerprints
from metier.messages import (
    MediaPart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    user,
)
from metier.providers.base import ModelRequest
from metier.values import JsonValue

PLAIN = ModelRequest(model="m", messages=(user("Hi"),))
TOOL = ToolSpec(name="Read", description="Read a file", input_schema={})


def test_request_without_tools_has_the_same_hash_after_any_history() -> None:
    used = Fingerprints()
    used.of(ModelRequest(model="m", messages=PLAIN.messages, tools=(TOOL,)))

    assert used.of(PLAIN) == Fingerprints().of(PLAIN)


def test_hash_recorded_by_an_older_version_after_a_request_with_tools_matches() -> None:
    text = b'{"role":"user","parts":[{"kind":"text","text":"Hi"}]}'
    recorded = hashlib.sha256(b"m" + hashlib.sha256(b"").digest() + hashlib.sha256(text).digest()).hexdigest()[:32]

    assert Fingerprints().match(PLAIN, recorded).hash == recorded
    assert Fingerprints().match(PLAIN, "0" * 32) == Fingerprints().of(PLAIN)


def test_request_with_every_kind_of_part_has_its_0_2_hash() -> None:
    arguments: dict[str, JsonValue] = {"a": 1e17, "b": [1, None, True, 0.5], "c": float("inf"), "d": 10**30}
    scan = MediaPart(media_type="application/pdf", digest="e", pages=2)
    messages = (
        Message(role="user", parts=(TextPart(text="Hé\n"), MediaPart(media_type="image/png", digest="d", width=1))),
        Message(
            role="assistant",
            parts=(
                ThinkingPart(text="t", signature="s", provider="p"),
                ToolCallPart(id="1", name="Read", arguments=arguments),
            ),
        ),
        Message(
            role="tool",
            parts=(
                ToolResultPart(call_id="1", name="Read", text="x"),
                ToolResultPart(call_id="2", name="Read", text="y", is_error=True, media=(scan,)),
            ),
        ),
    )
    tools = (ToolSpec(name="Read", description="Read a file", input_schema={"type": "object", "minimum": 1e20}),)

    fingerprint = Fingerprints().of(ModelRequest(model="m", messages=messages, tools=tools))

    assert fingerprint == ("640b08d96eedbd39862ca3d2ca7cae5d", 707)
