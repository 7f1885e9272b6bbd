"""Gemini's generateContent API: requests and replies as its JSON and stream chunks, and the calls over HTTP."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import assert_never, override
from urllib.parse import quote

from msgspec.structs import replace

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
from metier.providers.media_wire import describe_absent, encode_media
from metier.providers.transcript import Dialect, HistoryCache, Turn, build_history, encode_body
from metier.providers.transport import RestProvider, exchange, name_models
from metier.providers.wire import Wire, as_count, as_object, as_objects, as_text, own_names, read_call, wire_name

NAME = "gemini"
ADDRESS = "https://generativelanguage.googleapis.com"
VERSION = "v1"

_ROLES = {"user": "user", "assistant": "model"}
_UNSIGNED = "skip_thought_signature_validator"
"""Placeholder signature that the vendor accepts on calls of another model."""

_STOP_REASONS: Mapping[str, StopReason] = {
    "STOP": "end",
    "MAX_TOKENS": "max_tokens",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "LANGUAGE": "refusal",
    "IMAGE_SAFETY": "refusal",
}
_SCHEMA_WITH_TOOLS = re.compile(r"gemini-(?:[3-9]|\d\d)")
"""Models that accept a schema together with tools; older ones reject the request."""
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE"})


class GeminiProvider(RestProvider):
    """Gemini models, or any server with their format."""

    name = NAME

    def __init__(self, connection: Connection) -> None:
        # A header: the other documented way is a query parameter, which ends up in the logs of proxies.
        headers = {"x-goog-api-key": connection.key}
        super().__init__(connection, root=connection.base_url or ADDRESS, headers=headers)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        body = build_body(request, self._facts.get(self.name, request.model), self._cache)
        # Without `alt=sse` the stream is one JSON array, which can't be parsed before it ends.
        method = "generateContent" if observe is None else "streamGenerateContent?alt=sse"
        assembly = StreamAssembly(observe) if observe is not None else None
        with exchange(self.name, request.timeout_seconds):
            path = _build_path(request, method)
            reply = await self._fetch(path, body, assembly, trace_parent=request.trace_parent)
            return parse_reply(reply, request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        body = build_count_body(request, self._facts.get(self.name, request.model), self._cache)
        with exchange(self.name, request.timeout_seconds):
            path = _build_path(request, "countTokens")
            counted = await self._fetch(path, body, None, trace_parent=request.trace_parent)
        return as_count(counted.get("totalTokens")) or None

    @override
    async def list_models(self, *, seconds: float) -> tuple[str, ...]:
        with exchange(self.name, seconds):
            # The default page has 50 models; 1000 is the largest page.
            reply = await self._rest.fetch(f"/{VERSION}/models?pageSize=1000")
            listed = name_models(reply, items="models", name="name")
        return tuple(name.removeprefix("models/") for name in listed)

    @override
    def _check_event(self, event: Wire) -> None:
        if event.get("error"):
            raise failure_of_event(self._rest.server, as_object(event["error"]))


def open_provider(connection: Connection) -> GeminiProvider:
    return GeminiProvider(connection)


def _build_path(request: ModelRequest, method: str) -> str:
    # Quoted, so that a model's name can't change the path.
    return f"/{VERSION}/models/{quote(request.model.removeprefix('models/'), safe='')}:{method}"


def build_body(request: ModelRequest, facts: ModelFacts, cache: HistoryCache) -> bytes:
    def build() -> Wire:
        generation: Wire = {"maxOutputTokens": request.max_tokens}
        if request.temperature is not None and facts.takes_temperature:
            generation["temperature"] = request.temperature
        if request.response_schema is not None and (not request.tools or _SCHEMA_WITH_TOOLS.search(request.model)):
            generation |= {"responseMimeType": "application/json", "responseJsonSchema": request.response_schema}
        return {**_build_head(request), "generationConfig": generation}

    return _encode(cache.encode_head("whole", request, build), request, facts, cache=cache)


def build_count_body(request: ModelRequest, facts: ModelFacts, cache: HistoryCache) -> bytes:
    def build() -> Wire:
        return {"model": f"models/{request.model}", **_build_head(request)}

    head = cache.encode_head("count", request, build)
    # Only this form also counts the instructions and the tools.
    return b'{"generateContentRequest":%s}' % _encode(head, request, facts, cache=cache)


def parse_reply(body: Wire, request: ModelRequest) -> ModelReply:
    reply = ModelReply(
        parts=(),
        stop_reason="refusal",
        usage=_parse_usage(as_object(body.get("usageMetadata"))),
        provider=NAME,
        model=as_text(body.get("modelVersion")) or request.model,
        response_id=as_text(body.get("responseId")),
    )
    candidate = next(iter(as_objects(body.get("candidates"))), None)
    if candidate is None:
        # A blocked prompt has no candidate at all. It's a refusal and not a failure: sending it again would be blocked
        # again.
        blocked = as_text(as_object(body.get("promptFeedback")).get("blockReason"))
        if not blocked:
            raise ReplyBroken("gemini sent JSON without a candidate", hint="Check the base URL")
        return replace(reply, finish_reason=blocked)
    finish = as_text(candidate.get("finishReason"))
    # The model wrote a call that the vendor itself couldn't parse. Asking again often helps, so this failure is
    # retried.
    if finish in _BROKEN:
        raise ReplyBroken(f"gemini gave up on its own reply: {finish}")
    pieces = as_objects(as_object(candidate.get("content")).get("parts"))
    # For servers without response ids: call ids must differ between replies, and be the same in a replay.
    fingerprint = hashlib.sha256(json.dumps(pieces).encode()).hexdigest()[:16]
    parts = _PartReader(request, reply.response_id or fingerprint).read(pieces)
    called = any(isinstance(part, ToolCallPart) for part in parts)
    reason = _STOP_REASONS.get(finish, "other")
    # The vendor also reports STOP for replies with calls.
    reason = "tool_calls" if called and reason == "end" else reason
    return replace(reply, parts=parts, stop_reason=reason, finish_reason=finish)


class StreamAssembly:
    """Builds the complete answer from stream chunks."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._head: Wire = {}
        self._pieces: list[Wire] = []
        self._finish = ""

    def add(self, chunk: Wire) -> None:
        for key in ("usageMetadata", "modelVersion", "responseId", "promptFeedback"):
            if chunk.get(key):
                self._head[key] = chunk[key]
        for candidate in as_objects(chunk.get("candidates"))[:1]:
            self._finish = as_text(candidate.get("finishReason")) or self._finish
            for piece in as_objects(as_object(candidate.get("content")).get("parts")):
                self._add_piece(piece)

    def message(self) -> Wire:
        if not self._finish:
            if as_object(self._head.get("promptFeedback")).get("blockReason"):
                return self._head
            raise ReplyBroken("gemini ended the stream before the answer was complete")
        candidate = {"content": {"role": "model", "parts": self._pieces}, "finishReason": self._finish}
        return {**self._head, "candidates": [candidate]}

    def _add_piece(self, piece: Wire) -> None:
        text = as_text(piece.get("text"))
        if text:
            self._observe(Delta("thinking" if piece.get("thought") else "text", text))
        last = self._pieces[-1] if self._pieces else {}
        same_kind = "text" in last and "text" in piece and bool(last.get("thought")) == bool(piece.get("thought"))
        # A signature belongs to exactly one part, so text after it starts another part.
        if same_kind and "thoughtSignature" not in last:
            self._pieces[-1] = {**last, **piece, "text": as_text(last["text"]) + text}
        else:
            self._pieces.append(piece)


class _PartReader:
    """Reads the parts of one candidate."""

    def __init__(self, request: ModelRequest, response_id: str) -> None:
        self._names = own_names(tool.name for tool in request.tools)
        self._model = request.model
        self._response_id = response_id

    def read(self, pieces: list[Wire]) -> tuple[Part, ...]:
        return tuple(part for index, piece in enumerate(pieces) for part in self._read_piece(index, piece))

    def _read_piece(self, index: int, piece: Wire) -> list[Part]:
        signature = as_text(piece.get("thoughtSignature"))
        if "functionCall" in piece:
            return [self._read_call(index, as_object(piece["functionCall"]), signature)]
        text = as_text(piece.get("text"))
        if piece.get("thought"):
            return [ThinkingPart(text=text, signature=self._sign(signature), provider=NAME)]
        parts: list[Part] = [TextPart(text=text)] if text else []
        # Text parts have no signature of their own: it becomes an empty thinking part right after the text.
        return [*parts, ThinkingPart(signature=self._sign(signature), provider=NAME)] if signature else parts

    def _read_call(self, index: int, call: Wire, signature: str) -> ToolCallPart:
        # Not every model sends ids. They are derived from the reply, so that a replay gives calls the same ids.
        call_id = as_text(call.get("id")) or f"call_{self._response_id}_{index}"
        return read_call(
            call_id, call.get("name"), call.get("args"), names=self._names, signature=self._sign(signature)
        )

    def _sign(self, signature: str) -> str:
        # Signatures are valid for one model only, so they carry its name.
        return f"{NAME}:{self._model}:{signature}" if signature else ""


def _encode(head: bytes, request: ModelRequest, facts: ModelFacts, *, cache: HistoryCache) -> bytes:
    writer = _TurnWriter(request.model, signs_calls=facts.signs_calls, media=request.media)
    dialect = Dialect(provider=NAME, max_id_length=64, to_wire=writer.to_wire, variant=request.model)
    return encode_body(head, "contents", build_history(request.messages, dialect, cache))


def _build_head(request: ModelRequest) -> Wire:
    body: Wire = {}
    system = [{"text": block.text} for block in request.system if block.text]
    if system:
        body["systemInstruction"] = {"parts": system}
    if request.tools:
        # `parametersJsonSchema`, because `parameters` only knows a part of JSON Schema.
        declarations = [
            {
                "name": wire_name(tool.name),
                "description": tool.description,
                "parametersJsonSchema": tool.input_schema,
            }
            for tool in request.tools
        ]
        body["tools"] = [{"functionDeclarations": declarations}]
        body["toolConfig"] = {"functionCallingConfig": _calling_config(request.tool_choice)}
    return body


class _TurnWriter:
    """Writes turns for one model."""

    def __init__(self, model: str, *, signs_calls: bool, media: Mapping[str, bytes]) -> None:
        self._prefix = f"{NAME}:{model}:"
        self._signs_calls = signs_calls
        self._media = media

    def to_wire(self, turn: Turn) -> list[Wire]:
        pieces: list[Wire] = []
        called = False
        for part in turn.parts:
            # The vendor signs, and checks, only the first of parallel calls.
            pieces.extend(self._pieces(part, first_call=not called))
            called = called or isinstance(part, ToolCallPart)
        return [{"role": _ROLES[turn.role], "parts": pieces}] if pieces else []

    def _pieces(self, part: Part, *, first_call: bool) -> list[Wire]:
        match part:
            case TextPart():
                return [{"text": part.text}]
            case ThinkingPart():
                signature = self._own_signature(part.signature)
                # The vendor itself sends signatures of text in an empty text part at the end of a stream.
                return [{"text": "", "thoughtSignature": signature}] if signature else []
            case ToolCallPart():
                call: Wire = {"functionCall": {"id": part.id, "name": wire_name(part.name), "args": part.arguments}}
                unsigned = _UNSIGNED if self._signs_calls and first_call else ""
                signature = self._own_signature(part.signature) or unsigned
                return [{**call, "thoughtSignature": signature}] if signature else [call]
            case ToolResultPart():
                # The API has no flag for failures, but it gives these two keys their meaning.
                response = {"error" if part.is_error else "output": part.text}
                result = {"id": part.call_id, "name": wire_name(part.name), "response": response}
                # Not every model accepts images inside a function response, so they follow it.
                return [{"functionResponse": result}, *map(self._media_piece, part.media)]
            case MediaPart():
                return [self._media_piece(part)]
            case _:
                assert_never(part)

    def _media_piece(self, part: MediaPart) -> Wire:
        data = encode_media(part, self._media)
        return {"inlineData": {"mimeType": part.media_type, "data": data}} if data else {"text": describe_absent(part)}

    def _own_signature(self, signature: str) -> str:
        return signature.removeprefix(self._prefix) if signature.startswith(self._prefix) else ""


def _calling_config(choice: ToolChoice) -> Wire:
    match choice:
        case "auto":
            return {"mode": "AUTO"}
        case "required":
            return {"mode": "ANY"}
        case "none":
            return {"mode": "NONE"}
        case OneTool():
            return {"mode": "ANY", "allowedFunctionNames": [wire_name(choice.name)]}
        case _:
            assert_never(choice)


def _parse_usage(usage: Wire) -> Usage:
    # Neither count is part of the other: the prompt count excludes results of the vendor's own tools, the candidates'
    # count excludes thoughts. Cached tokens are part of the prompt count.
    thoughts = as_count(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=as_count(usage.get("promptTokenCount")) + as_count(usage.get("toolUsePromptTokenCount")),
        output_tokens=as_count(usage.get("candidatesTokenCount")) + thoughts,
        cache_read_tokens=as_count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )
