"""Anthropic's Messages API: requests and replies as its JSON and stream events, and the calls over HTTP."""

from collections.abc import Mapping
from typing import assert_never, override

from msgspec.structs import replace
from pydantic import JsonValue

from metier.messages import (
    MediaPart,
    ModelReply,
    Part,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from metier.providers.base import Delta, ModelRequest, Observer, OneTool, ToolChoice
from metier.providers.connection import Connection
from metier.providers.facts import ModelFacts
from metier.providers.failures import ReplyBroken
from metier.providers.http_status import failure_of_event
from metier.providers.media_wire import describe_absent, encode_media, is_picture
from metier.providers.transcript import (
    OPEN_PIECES,
    Dialect,
    HistoryCache,
    Piece,
    Turn,
    build_history,
    encode_body,
    encode_wires,
)
from metier.providers.transport import RestProvider, exchange
from metier.providers.wire import (
    Wire,
    as_count,
    as_object,
    as_objects,
    as_text,
    own_names,
    read_call,
    serialize,
    wire_name,
)

NAME = "anthropic"
ADDRESS = "https://api.anthropic.com"
# Every request must name a version. The vendor keeps the format of a version unchanged, so raising it is a code change.
VERSION = "2026-10-21"
# A server that always pauses must not keep a turn going forever.
MAX_CONTINUATIONS = 8
"""Maximum number of times that one reply continues a turn paused by the server."""

# Lives for five minutes, and each hit starts them again. The longer lifetime costs twice the input price to write.
_MARK = {"type": "ephemeral"}
_MAX_MARKS = 4
"""The server rejects a request with more cache breakpoints."""
_END_OF_BODY = b"]}"
"""`encode_body` puts the history last."""
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_REDACTED = "redacted:"
"""Signature prefix of a thinking part whose text the vendor doesn't disclose."""

_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "end",
    "tool_use": "tool_calls",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
}


class AnthropicProvider(RestProvider):
    """Claude models, or any server with the Messages format."""

    name = NAME
    # The default page has 20 models. 1000 is the largest page, so a second one is never needed.
    models_path = "/v1/models?limit=1000"

    def __init__(self, connection: Connection) -> None:
        headers = {"Authorization": f"Bearer {connection.key}", "anthropic-version": VERSION}
        super().__init__(connection, root=connection.base_url or ADDRESS, headers=headers)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        facts = self._facts.get(self.name, request.model)
        body = build_body(request, facts, self._cache, stream=observe is not None)
        with exchange(self.name, request.timeout_seconds):
            message = await self._ask(body, observe, request.trace_parent)
            for _ in range(MAX_CONTINUATIONS):
                if not is_paused(message):
                    break
                more = await self._ask(continue_body(body, message), observe, request.trace_parent)
                message = join_messages(message, more)
            return parse_reply(message, request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        body = build_count_body(request, self._cache)
        with exchange(self.name, request.timeout_seconds):
            counted = await self._rest.fetch("/v1/messages/count_tokens", body)
        return as_count(counted.get("input_tokens")) or None

    async def _ask(self, body: bytes, observe: Observer | None, trace_parent: str) -> Wire:
        assembly = StreamAssembly(observe) if observe is not None else None
        return await self._fetch("/v1/messages", body, assembly, trace_parent=trace_parent)

    @override
    def _check_event(self, event: Wire) -> None:
        if event.get("type") == "error":
            raise failure_of_event(self._rest.server, as_object(event.get("error")))


def open_provider(connection: Connection) -> AnthropicProvider:
    return AnthropicProvider(connection)


def build_body(request: ModelRequest, facts: ModelFacts, cache: HistoryCache, *, stream: bool) -> bytes:
    def build() -> Wire:
        # The only vendor that rejects a request without a limit.
        limits: Wire = {"max_tokens": request.max_tokens}
        if request.temperature is not None and facts.takes_temperature:
            limits["temperature"] = request.temperature
        if stream:
            limits["stream"] = True
        return {**_build_head(request), **limits}

    return _encode(cache.encode_head("stream" if stream else "whole", request, build), request, cache)


def build_count_body(request: ModelRequest, cache: HistoryCache) -> bytes:
    """Build the request that counts input tokens."""
    return _encode(cache.encode_head("count", request, lambda: _build_head(request)), request, cache)


def parse_reply(body: Wire, request: ModelRequest) -> ModelReply:
    if body.get("type") != "message" or not isinstance(body.get("content"), list):
        raise ReplyBroken("anthropic sent JSON that is not a message", hint="Check the base URL")
    names = own_names(tool.name for tool in request.tools)
    usage = as_object(body.get("usage"))
    cache_read = as_count(usage.get("cache_read_input_tokens"))
    cache_write = as_count(usage.get("cache_creation_input_tokens"))
    # The vendor counts cached tokens separately; everywhere else, the input includes them.
    return ModelReply(
        parts=tuple(part for block in as_objects(body["content"]) if (part := _parse_block(block, names)) is not None),
        stop_reason=_STOP_REASONS.get(as_text(body.get("stop_reason")), "other"),
        usage=Usage(
            input_tokens=as_count(usage.get("input_tokens")) + cache_read + cache_write,
            output_tokens=as_count(usage.get("output_tokens")),
            cache_read_tokens=cache_read,
            cache_write_tokens=cache_write,
            reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("thinking_tokens")),
        ),
        provider=NAME,
        model=as_text(body.get("model")) or request.model,
        response_id=as_text(body.get("id")),
        finish_reason=as_text(body.get("stop_reason")),
    )


def is_paused(message: Wire) -> bool:
    """Return True if the server paused the turn and expects the same request again, with the content so far."""
    return message.get("stop_reason") == "pause_turn" and bool(as_objects(message.get("content")))


def continue_body(body: bytes, message: Wire) -> bytes:
    """Build the request that continues a paused turn."""
    # The blocks go back exactly as they came: the server rejects changed thinking blocks.
    paused = serialize({"role": "assistant", "content": message.get("content")})
    return b"".join((body.removesuffix(_END_OF_BODY), b",", paused, _END_OF_BODY))


def join_messages(message: Wire, more: Wire) -> Wire:
    """Join a paused turn and its continuation into one message."""
    counts = as_object(message.get("usage")), as_object(more.get("usage"))
    usage = {**counts[0], **counts[1]}
    # Both requests are billed, so their token counts are added.
    usage |= {name: sum(as_count(each.get(name)) for each in counts) for name in _COUNTS}
    content = [*as_objects(message.get("content")), *as_objects(more.get("content"))]
    return {**more, "content": content, "usage": usage}


class StreamAssembly:
    """Builds the complete message from stream events."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._message: Wire = {}
        self._blocks: dict[int, Wire] = {}
        """By index: the events of several blocks may be interleaved."""
        self._inputs: dict[int, list[str]] = {}
        self._complete = False

    def add(self, event: Wire) -> None:
        match event.get("type"):
            case "message_start":
                self._message = dict(as_object(event.get("message")))
            case "content_block_start":
                self._blocks[self._get_index(event, len(self._blocks))] = dict(as_object(event.get("content_block")))
            case "content_block_delta":
                self._extend(self._get_index(event, len(self._blocks) - 1), as_object(event.get("delta")))
            case "message_delta":
                self._message |= as_object(event.get("delta"))
                # These counts are cumulative and replace those of `message_start`.
                self._message["usage"] = as_object(self._message.get("usage")) | as_object(event.get("usage"))
            case "message_stop":
                # A connection that breaks may look like a normal end, so only this event proves that nothing is
                # missing.
                self._complete = True
            case _:
                pass  # pings, and event types of later API versions

    def message(self) -> Wire:
        if not self._complete:
            raise ReplyBroken("anthropic ended the stream before the message was complete")
        for index, pieces in self._inputs.items():
            self._blocks[index]["input"] = "".join(pieces)
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}

    def _get_index(self, event: Wire, otherwise: int) -> int:
        index = event.get("index")
        return index if isinstance(index, int) else otherwise

    def _extend(self, index: int, delta: Wire) -> None:
        block = self._blocks.get(index)
        if block is None:
            raise ReplyBroken("anthropic sent a delta for a block that it never started")
        match delta.get("type"):
            case "text_delta":
                block["text"] = as_text(block.get("text")) + as_text(delta.get("text"))
                self._observe(Delta("text", as_text(delta.get("text"))))
            case "thinking_delta":
                block["thinking"] = as_text(block.get("thinking")) + as_text(delta.get("thinking"))
                self._observe(Delta("thinking", as_text(delta.get("thinking"))))
            # The signature comes last in its block, and the server checks it when the block is sent back.
            case "signature_delta":
                block["signature"] = as_text(block.get("signature")) + as_text(delta.get("signature"))
            # The pieces end anywhere, even within an escape sequence: only the joined text can be parsed.
            case "input_json_delta":
                self._inputs.setdefault(index, []).append(as_text(delta.get("partial_json")))
            case _:
                pass


def _parse_block(block: Wire, names: Mapping[str, str]) -> Part | None:
    match block.get("type"):
        case "text":
            return TextPart(text=as_text(block.get("text")))
        case "thinking":
            text, signature = as_text(block.get("thinking")), as_text(block.get("signature"))
            return ThinkingPart(text=text, signature=signature, provider=NAME)
        # Kept although it is unreadable: the server wants it back in front of the calls that followed it.
        case "redacted_thinking":
            return ThinkingPart(signature=_REDACTED + as_text(block.get("data")), provider=NAME)
        case "tool_use":
            return read_call(as_text(block.get("id")), block.get("name"), block.get("input"), names=names)
        case _:
            return None


def _media_block(part: MediaPart, media: Mapping[str, bytes]) -> Wire:
    data = encode_media(part, media)
    if not data:
        return {"type": "text", "text": describe_absent(part)}
    source: Wire = {"type": "base64", "media_type": part.media_type, "data": data}
    if is_picture(part):
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, "title": part.name or "document"}


def _block(part: Part, media: Mapping[str, bytes]) -> Wire:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ThinkingPart():
            if part.signature.startswith(_REDACTED):
                return {"type": "redacted_thinking", "data": part.signature.removeprefix(_REDACTED)}
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolCallPart():
            return {"type": "tool_use", "id": part.id, "name": wire_name(part.name), "input": part.arguments}
        case ToolResultPart():
            # A result may be empty, a text block may not.
            content: list[Wire] = [{"type": "text", "text": part.text}] if part.text.strip() else []
            content += [_media_block(each, media) for each in part.media]
            result: Wire = {"type": "tool_result", "tool_use_id": part.call_id, "content": content}
            return {**result, "is_error": True} if part.is_error else result
        case MediaPart():
            return _media_block(part, media)
        case _:
            assert_never(part)


def _build_head(request: ModelRequest) -> Wire:
    head: Wire = {"model": request.model}
    if request.system:
        # The server rejects empty text blocks.
        head["system"] = [_system_block(block.text, mark=block.cache) for block in request.system if block.text]
    if request.tools:
        head["tools"] = [
            {"name": wire_name(tool.name), "description": tool.description, "input_schema": tool.input_schema}
            for tool in request.tools
        ]
        head["tool_choice"] = _tool_choice(request.tool_choice)
    if request.response_schema is not None:
        # The server rejects schemas with open objects, so none is sent for them: the prompt still describes the format,
        # and the reply is validated anyway.
        schema = close_schema(request.response_schema) if request.tools else request.response_schema
        head |= {"output_config": {"format": {"type": "json_schema", "schema": schema}}} if schema else {}
    return head


def _encode(head: bytes, request: ModelRequest, cache: HistoryCache) -> bytes:
    def to_wire(turn: Turn) -> list[Wire]:
        return [{"role": turn.role, "content": [_block(part, request.media) for part in turn.parts]}]

    # The server rejects longer call ids.
    dialect = Dialect(provider=NAME, max_id_length=64, to_wire=to_wire)
    history = build_history(request.messages, dialect, cache)
    marks = sum(block.cache for block in request.system)
    if marks:
        _mark_last_turns(history.pieces, cache, at_most=min(OPEN_PIECES, _MAX_MARKS - marks))
    return encode_body(head, "messages", history)


def _system_block(text: str, *, mark: bool) -> Wire:
    block: Wire = {"type": "text", "text": text}
    return {**block, "cache_control": _MARK} if mark else block


def _tool_choice(choice: ToolChoice) -> Wire:
    match choice:
        case "auto":
            return {"type": "auto"}
        case "required":
            return {"type": "any"}
        case "none":
            return {"type": "none"}
        case OneTool():
            return {"type": "tool", "name": wire_name(choice.name)}
        case _:
            assert_never(choice)


# Two turns, because the newest mark writes the entry that the next request reads, and the one before it reads the entry
# that the last request wrote.
def _mark_last_turns(pieces: list[Piece], cache: HistoryCache, *, at_most: int) -> None:
    """Mark the newest user turns as cache breakpoints, so that the next request hits the vendor's prompt cache."""
    for index in range(len(pieces) - 1, -1, -1):
        if at_most <= 0:
            return
        if pieces[index].wires[-1]["role"] == "user":
            pieces[index] = cache.mark(pieces[index], _mark)
            at_most -= 1


def _mark(piece: Piece) -> Piece:
    *others, last = piece.wires
    *blocks, end = as_objects(last["content"])
    marked: Wire = {"role": "user", "content": [*blocks, {**end, "cache_control": _MARK}]}
    wires = (*others, marked)
    return replace(piece, wires=wires, encoded=encode_wires(wires))


# The vendor compiles a schema to a grammar and answers 400 for any keyword beyond these.
_ALLOWED_KEYWORDS = frozenset(
    {"type", "enum", "const", "description", "title", "default", "$ref", "required", "additionalProperties", "format"}
)
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf")


def close_schema(schema: JsonValue) -> dict[str, JsonValue] | None:
    """Close every object of a schema and drop limits on values. Return None if it has open objects or `oneOf`."""
    if not isinstance(schema, dict) or "oneOf" in schema:
        return None
    closed: dict[str, JsonValue] = {
        key: value
        for key, value in schema.items()
        if key in _ALLOWED_KEYWORDS and (key != "format" or value in _FORMATS)
    }
    if schema.get("type") == "object" or "properties" in schema:
        if not schema.get("properties") or schema.get("additionalProperties", False) not in (False, None):
            return None
        closed["additionalProperties"] = False
    for key in (*_MAPS, *_LISTS, "items"):
        if key not in schema:
            continue
        part = _close_part(schema[key], is_node=key == "items")
        if part is None:
            return None
        closed[key] = part
    return closed


def _close_part(part: JsonValue, *, is_node: bool) -> JsonValue:
    if is_node:
        return close_schema(part)
    if isinstance(part, dict):
        mapped = {name: close_schema(each) for name, each in part.items()}
        return None if None in mapped.values() else {**mapped}
    if isinstance(part, list):
        listed = [close_schema(each) for each in part]
        return None if None in listed else [*listed]
    return None
