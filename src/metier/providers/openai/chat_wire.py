"""OpenAI's chat completions, the format of every compatible server: request to JSON, JSON to reply. Pure."""

import json
from collections.abc import Mapping
from typing import assert_never

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
from metier.providers.facts import ModelFacts
from metier.providers.failures import ReplyBroken
from metier.providers.media_wire import build_data_url, describe_absent, is_picture
from metier.providers.transcript import Dialect, History, HistoryCache, Turn, build_history, encode_body, render_result
from metier.providers.wire import (
    Wire,
    as_count,
    as_list,
    as_object,
    as_objects,
    as_text,
    own_names,
    read_call,
    serialize,
    wire_name,
)

NAME = "openai"

_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "end",
    "tool_calls": "tool_calls",
    # The older name, which some compatible servers still send.
    "function_call": "tool_calls",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def build_body(
    request: ModelRequest, facts: ModelFacts, cache: HistoryCache, *, stream: bool, own_server: bool
) -> bytes:
    """Build the request. `own_server` is False for other servers, which only know the older name of the token limit."""

    def build() -> Wire:
        return _build_head(request, facts, stream=stream, own_server=own_server)

    head = cache.encode_head("stream" if stream else "whole", request, build)
    to_wire = _to_wire_with_reasoning if facts.wants_reasoning_text else _to_wire
    variant = "chat with reasoning" if facts.wants_reasoning_text else "chat"
    # OpenAI rejects longer call ids.
    dialect = Dialect(
        provider=NAME, max_id_length=40, to_wire=lambda turn: to_wire(turn, request.media), variant=variant
    )
    history = build_history(request.messages, dialect, cache)
    return encode_body(head, "messages", _with_system(request, history))


def _build_head(request: ModelRequest, facts: ModelFacts, *, stream: bool, own_server: bool) -> Wire:
    body: Wire = {
        "model": request.model,
        "max_completion_tokens" if own_server else "max_tokens": request.max_tokens,
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": wire_name(tool.name),
                    "description": tool.description,
                    "parameters": tool.input_schema,
                },
            }
            for tool in request.tools
        ]
        body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.response_schema is not None:
        strict = schema_is_strict(request.response_schema)
        schema = {"name": "reply", "schema": request.response_schema, "strict": strict}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.temperature is not None and facts.takes_temperature:
        body["temperature"] = request.temperature
    if stream:
        # Without this option, streams have no token counts.
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def parse_reply(body: Wire, request: ModelRequest) -> ModelReply:
    choice = next(iter(as_objects(body.get("choices"))), None)
    if choice is None:
        raise ReplyBroken("openai sent JSON without a choice", hint="Check the base URL")
    message = as_object(choice.get("message"))
    parts = _parse_message(message, own_names(tool.name for tool in request.tools), as_text(body.get("id")))
    finish = as_text(choice.get("finish_reason"))
    return ModelReply(
        parts=parts,
        stop_reason=_stop_reason(finish, message, parts),
        usage=_parse_usage(as_object(body.get("usage"))),
        provider=NAME,
        model=as_text(body.get("model")) or request.model,
        response_id=as_text(body.get("id")),
        finish_reason=finish,
    )


class StreamAssembly:
    """Builds the complete response from stream chunks."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._head: Wire = {}
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
        self._calls: dict[int, Wire] = {}
        self._finish = ""

    def add(self, event: Wire) -> None:
        for key in ("id", "model", "usage"):
            if event.get(key):
                self._head[key] = event[key]
        # The chunk with the token counts comes last, after the finish reason, and has an empty list of choices.
        for choice in as_objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            self._extend(as_object(choice.get("delta")))
            self._finish = as_text(choice.get("finish_reason")) or self._finish

    def message(self) -> Wire:
        # A connection that breaks may look like a normal end of the stream; only a finish reason proves that it's
        # complete.
        if not self._finish:
            raise ReplyBroken("openai ended the stream before the message was complete")
        message: Wire = {key: "".join(pieces) for key, pieces in self._texts.items() if pieces}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return {**self._head, "choices": [{"index": 0, "message": message, "finish_reason": self._finish}]}

    def _extend(self, delta: Wire) -> None:
        self._add_text("content", as_text(delta.get("content")))
        # Servers use one of two names: for example, vLLM the first and OpenRouter the second.
        self._add_text("reasoning_content", as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning")))
        self._add_text("refusal", as_text(delta.get("refusal")))
        for piece in as_objects(delta.get("tool_calls")):
            self._extend_call(self._get_call(piece), piece)

    def _get_call(self, piece: Wire) -> int:
        """Return the number of the call that a piece belongs to."""
        # Some servers leave the index out; then the id identifies the call, and a piece without either continues it.
        index, call_id = piece.get("index"), as_text(piece.get("id"))
        if isinstance(index, int):
            return index
        if call_id:
            known = [each for each, call in self._calls.items() if call["id"] == call_id]
            return known[0] if known else len(self._calls)
        return max(0, len(self._calls) - 1)

    def _add_text(self, key: str, text: str) -> None:
        if not text:
            return
        self._texts[key].append(text)
        self._observe(Delta("thinking" if key == "reasoning_content" else "text", text))

    def _extend_call(self, index: int, piece: Wire) -> None:
        call = self._calls.setdefault(index, {"id": "", "function": {"name": "", "arguments": ""}})
        # Only arguments come in pieces. Some servers repeat id and name in each piece, so these aren't joined.
        call["id"] = as_text(call["id"]) or as_text(piece.get("id"))
        function, more = as_object(call["function"]), as_object(piece.get("function"))
        function["name"] = as_text(function["name"]) or as_text(more.get("name"))
        function["arguments"] = as_text(function["arguments"]) + as_text(more.get("arguments"))


def _parse_message(message: Wire, names: Mapping[str, str], response_id: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    reasoning = as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))
    if reasoning:
        parts.append(ThinkingPart(text=reasoning, provider=NAME))
    text = as_text(message.get("content")) or as_text(message.get("refusal"))
    if text:
        parts.append(TextPart(text=text))
    for index, call in enumerate(as_objects(message.get("tool_calls"))):
        function = as_object(call.get("function"))
        # Some servers send no ids. The position keeps ids of parallel calls apart.
        call_id = as_text(call.get("id")) or f"{response_id or 'call'}-{index}"
        parts.append(read_call(call_id, function.get("name"), function.get("arguments"), names=names))
    return tuple(parts)


def _stop_reason(finish: str, message: Wire, parts: tuple[Part, ...]) -> StopReason:
    if message.get("refusal"):
        return "refusal"
    reason = _STOP_REASONS.get(finish, "other")
    # Some servers report `stop` although the reply has tool calls.
    if reason == "end" and any(isinstance(part, ToolCallPart) for part in parts):
        return "tool_calls"
    return reason


def _parse_usage(usage: Wire) -> Usage:
    prompt = as_object(usage.get("prompt_tokens_details"))
    return Usage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
        cache_read_tokens=as_count(prompt.get("cached_tokens")),
        cache_write_tokens=as_count(prompt.get("cache_write_tokens")),
        reasoning_tokens=as_count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )


def _to_wire(turn: Turn, media: Mapping[str, bytes]) -> list[Wire]:
    return [_assistant_message(turn)] if turn.role == "assistant" else _user_messages(turn, media)


def _to_wire_with_reasoning(turn: Turn, media: Mapping[str, bytes]) -> list[Wire]:
    wires = _to_wire(turn, media)
    reasoning = "".join(part.text for part in turn.parts if isinstance(part, ThinkingPart))
    return [{**wires[0], "reasoning_content": reasoning}] if reasoning else wires


def _with_system(request: ModelRequest, history: History) -> History:
    text = "\n\n".join(block.text for block in request.system if block.text)
    if not text:
        return history
    return replace(history, first=serialize({"role": "system", "content": text}))


def _assistant_message(turn: Turn) -> Wire:
    texts = [part.text for part in turn.parts if isinstance(part, TextPart)]
    calls = [_call(part) for part in turn.parts if isinstance(part, ToolCallPart)]
    message: Wire = {"role": "assistant", "content": "\n\n".join(texts) if texts else None}
    # A message without text or calls, with reasoning only, must still have a string as content.
    return {**message, "tool_calls": calls} if calls else {**message, "content": message["content"] or ""}


def _user_messages(turn: Turn, media: Mapping[str, bytes]) -> list[Wire]:
    messages: list[Wire] = []
    texts: list[str] = []
    seen: list[Wire] = []
    for part in turn.parts:
        match part:
            case ToolResultPart():
                content = render_result(part)
                messages.append({"role": "tool", "tool_call_id": part.call_id, "content": content})
                # Tool messages hold text only, so images follow in a user message.
                for each in part.media:
                    seen += [_text_piece(f"{each.name} (from {part.name}):"), _media_piece(each, media)]
            case TextPart():
                texts.append(part.text)
            case MediaPart():
                seen.append(_media_piece(part, media))
            case ThinkingPart() | ToolCallPart():
                pass
            case _:
                assert_never(part)
    if seen:
        written = [_text_piece("\n\n".join(texts))] if texts else []
        return [*messages, {"role": "user", "content": [*written, *seen]}]
    return [*messages, {"role": "user", "content": "\n\n".join(texts)}] if texts else messages


def _text_piece(text: str) -> Wire:
    return {"type": "text", "text": text}


def _media_piece(part: MediaPart, media: Mapping[str, bytes]) -> Wire:
    if part.digest not in media:
        return _text_piece(describe_absent(part))
    url = build_data_url(part, media)
    if is_picture(part):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": url}}


def _call(part: ToolCallPart) -> Wire:
    # JSON text inside JSON: the format sends arguments as a string, as the model wrote them.
    arguments = json.dumps(part.arguments, ensure_ascii=False)
    return {"id": part.id, "type": "function", "function": {"name": wire_name(part.name), "arguments": arguments}}


def _tool_choice(choice: ToolChoice) -> object:
    match choice:
        case "auto" | "required" | "none":
            return choice
        case OneTool():
            return {"type": "function", "function": {"name": wire_name(choice.name)}}
        case _:
            assert_never(choice)


def schema_is_strict(schema: object) -> bool:
    """Return True if OpenAI can enforce the schema: every object is closed and requires all its properties."""
    node = as_object(schema)
    properties = as_object(node.get("properties"))
    if "properties" in node or node.get("type") == "object":
        closed = node.get("additionalProperties") is False
        if not closed or set(map(str, as_list(node.get("required")))) != set(properties):
            return False
    children = [*properties.values(), *as_object(node.get("$defs")).values(), *as_list(node.get("anyOf"))]
    return all(schema_is_strict(child) for child in [*children, node.get("items")] if child is not None)
