"""OpenAI's responses format: request to JSON, JSON and stream events to reply. Pure; the server stores nothing."""

import json
from collections.abc import Mapping
from typing import assert_never

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
from metier.providers.openai.chat_wire import schema_is_strict
from metier.providers.transcript import Dialect, HistoryCache, Turn, build_history, encode_body, render_result
from metier.providers.wire import (
    Wire,
    as_count,
    as_object,
    as_objects,
    as_text,
    own_names,
    parse_json,
    read_call,
    wire_name,
)

NAME = "openai"


def build_body(request: ModelRequest, facts: ModelFacts, cache: HistoryCache, *, stream: bool) -> bytes:
    def build() -> Wire:
        # The server doesn't store the conversation, because every request has the whole history. Reasoning is then only
        # returned in encrypted form.
        limits: Wire = {"max_output_tokens": request.max_tokens, "store": False}
        if facts.reasons:
            limits["include"] = ["reasoning.encrypted_content"]
        if request.temperature is not None and facts.takes_temperature:
            limits["temperature"] = request.temperature
        if stream:
            limits["stream"] = True
        return {**_build_head(request), **limits}

    return _encode(cache.encode_head("stream" if stream else "whole", request, build), request, cache)


def build_count_body(request: ModelRequest, cache: HistoryCache) -> bytes:
    """Build the request that counts input tokens."""
    return _encode(cache.encode_head("count", request, lambda: _build_head(request)), request, cache)


def _encode(head: bytes, request: ModelRequest, cache: HistoryCache) -> bytes:
    # Reasoning is encrypted for one model, so the wire form of a history depends on the model.
    dialect = Dialect(
        provider=NAME,
        max_id_length=64,
        to_wire=lambda turn: [item for part in turn.parts for item in _items(part, turn, request)],
        variant=f"responses {request.model}",
    )
    return encode_body(head, "input", build_history(request.messages, dialect, cache))


def _build_head(request: ModelRequest) -> Wire:
    body: Wire = {"model": request.model}
    system = "\n\n".join(block.text for block in request.system if block.text)
    if system:
        body["instructions"] = system
    if request.tools:
        # Not strict: strict schemas must require all parameters, and most tools have optional ones.
        body["tools"] = [
            {
                "type": "function",
                "name": wire_name(tool.name),
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": False,
            }
            for tool in request.tools
        ]
        body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.response_schema is not None:
        schema = request.response_schema
        text = {"type": "json_schema", "name": "reply", "schema": schema, "strict": schema_is_strict(schema)}
        body["text"] = {"format": text}
    return body


def parse_reply(body: Wire, request: ModelRequest) -> ModelReply:
    if not isinstance(body.get("output"), list):
        raise ReplyBroken("openai sent JSON that is not a response", hint="Check the base URL")
    names = own_names(tool.name for tool in request.tools)
    items = as_objects(body["output"])
    parts = tuple(part for item in items for part in _parse_item(item, names, request.model))
    usage = as_object(body.get("usage"))
    prompt = as_object(usage.get("input_tokens_details"))
    return ModelReply(
        parts=parts,
        stop_reason=_stop_reason(body, items, parts),
        usage=Usage(
            input_tokens=as_count(usage.get("input_tokens")),
            output_tokens=as_count(usage.get("output_tokens")),
            cache_read_tokens=as_count(prompt.get("cached_tokens")),
            cache_write_tokens=as_count(prompt.get("cache_write_tokens")),
            reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
        ),
        provider=NAME,
        model=as_text(body.get("model")) or request.model,
        response_id=as_text(body.get("id")),
        finish_reason=_finish_reason(body),
    )


class StreamAssembly:
    """Reports deltas to the observer. The last event carries the whole response."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._response: Wire | None = None

    def add(self, event: Wire) -> None:
        match event.get("type"):
            case "response.output_text.delta" | "response.refusal.delta":
                self._observe(Delta("text", as_text(event.get("delta"))))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._observe(Delta("thinking", as_text(event.get("delta"))))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._response = as_object(event.get("response"))
            case _:
                pass

    def message(self) -> Wire:
        if self._response is None:
            raise ReplyBroken("openai ended the stream before the response was complete")
        return self._response


def _parse_item(item: Wire, names: Mapping[str, str], model: str) -> list[Part]:
    match item.get("type"):
        case "message":
            texts = [as_text(c.get("text")) or as_text(c.get("refusal")) for c in as_objects(item.get("content"))]
            return [TextPart(text=text) for text in texts if text]
        case "reasoning":
            summary = "\n\n".join(as_text(piece.get("text")) for piece in as_objects(item.get("summary")))
            # All that a later request must send back. A reasoning item without its encrypted content would be looked up
            # on the server, which has stored nothing.
            sealed = {"model": model, "id": item.get("id"), "encrypted_content": item.get("encrypted_content")}
            signature = json.dumps(sealed) if item.get("encrypted_content") else ""
            return [ThinkingPart(text=summary, signature=signature, provider=NAME)]
        case "function_call":
            # `id` names the item in the response; results refer to `call_id`.
            call_id = as_text(item.get("call_id")) or as_text(item.get("id"))
            return [read_call(call_id, item.get("name"), item.get("arguments"), names=names)]
        case _:
            return []


def _finish_reason(body: Wire) -> str:
    """Return why the response is incomplete, otherwise its status: this format has no other word."""
    return as_text(as_object(body.get("incomplete_details")).get("reason")) or as_text(body.get("status"))


def _stop_reason(body: Wire, items: list[Wire], parts: tuple[Part, ...]) -> StopReason:
    if body.get("status") == "incomplete":
        reason = as_object(body.get("incomplete_details")).get("reason")
        return "max_tokens" if reason == "max_output_tokens" else "refusal" if reason == "content_filter" else "other"
    if any(content.get("type") == "refusal" for item in items for content in as_objects(item.get("content"))):
        return "refusal"
    if any(isinstance(part, ToolCallPart) for part in parts):
        return "tool_calls"
    return "end" if body.get("status") in {"completed", None} else "other"


def _items(part: Part, turn: Turn, request: ModelRequest) -> list[Wire]:
    match part:
        case TextPart():
            if turn.role == "assistant":
                # The server rejects `input_text` in a message of the assistant.
                content: list[Wire] = [{"type": "output_text", "text": part.text}]
                return [{"type": "message", "role": "assistant", "content": content}]
            return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": part.text}]}]
        case ThinkingPart():
            return _reasoning_item(part, request.model)
        case ToolCallPart():
            arguments = json.dumps(part.arguments, ensure_ascii=False)
            name = wire_name(part.name)
            return [{"type": "function_call", "call_id": part.id, "name": name, "arguments": arguments}]
        case ToolResultPart():
            text = render_result(part)
            seen = [_media_item(each, request.media) for each in part.media]
            output = [{"type": "input_text", "text": text}, *seen] if seen else text
            return [{"type": "function_call_output", "call_id": part.call_id, "output": output}]
        case MediaPart():
            return [{"type": "message", "role": "user", "content": [_media_item(part, request.media)]}]
        case _:
            assert_never(part)


def _media_item(part: MediaPart, media: Mapping[str, bytes]) -> Wire:
    if part.digest not in media:
        return {"type": "input_text", "text": describe_absent(part)}
    url = build_data_url(part, media)
    if is_picture(part):
        return {"type": "input_image", "image_url": url}
    return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": url}


def _reasoning_item(part: ThinkingPart, model: str) -> list[Wire]:
    try:
        sealed = as_object(parse_json(part.signature)) if part.signature else {}
    except ValueError:
        return []
    if sealed.get("model") != model:
        return []
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    content = sealed.get("encrypted_content")
    return [{"type": "reasoning", "id": sealed.get("id"), "summary": summary, "encrypted_content": content}]


def _tool_choice(choice: ToolChoice) -> object:
    match choice:
        case "auto" | "required" | "none":
            return choice
        case OneTool():
            return {"type": "function", "name": wire_name(choice.name)}
        case _:
            assert_never(choice)
