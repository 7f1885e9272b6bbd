"""The `CallFailed` for an HTTP error of any vendor. Pure, except for the current date."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from metier.providers.connection import Server
from metier.providers.failures import (
    AuthFailed,
    BadRequest,
    CallFailed,
    ContextTooLong,
    NotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    ReplyBroken,
    SchemaUnsupported,
    ServerFailed,
    TimedOut,
    ToolsUnsupported,
)
from metier.providers.wire import Wire, as_list, as_object, as_objects, as_text
from metier.telemetry.excerpt import one_line

_MESSAGE_LENGTH = 300

_TOO_LONG = re.compile(
    r"context[_ ](length|window|size)|maximum context|prompt is too long|too many (input )?tokens|exceed_context_size"
    r"|input token count .* exceeds|exceeds? the (maximum|available) (number of tokens|context)",
    re.IGNORECASE,
)
# Google's daily limits have `PerDay` in the name of the quota, and come as 429 like those per minute.
_NO_QUOTA = re.compile(
    r"insufficient_quota|billing_hard_limit|billing_not_active|billing_error|credit balance is too low"
    r"|exceeded_current_quota|PerDay|insufficient[_ ](balance|credits?)",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(r"API_KEY_INVALID|API key not valid|API key expired", re.IGNORECASE)
_TOOLS = (
    r"[`'\"\\]*(?:tools?\b(?:[ _-]?(?:use|calls?|calling|choice))?|function[ _-]?call(?:s|ing)?|functions)[`'\"\\]*"
)
_FORMAT = r"[`'\"\\]*(?:response_?format|json_?schema|response_(?:json_)?schema|structured outputs?)[`'\"\\]*"


def _compile_unsupported(name: str, *others: str) -> re.Pattern[str]:
    """Compile a pattern for messages that reject a parameter, with the verdict before or after its name."""
    noun = r"(?:parameter|param|field|argument|key|type)s?"
    phrasings = (
        rf"(?:not|n't) (?:currently |natively )?support (?:native )?{name}",
        rf"{name}(?: (?:are|is|{noun}))* (?:currently )?(?:not |un)(?:supported|enabled|available)",
        rf"un(?:supported|known|recognized|expected) (?:request )?{noun}(?: supplied)?:? {name}",
    )
    return re.compile("|".join((*phrasings, *others)), re.IGNORECASE)


# Servers reject a parameter in free text only: Ollama, vLLM, llama.cpp, OpenRouter, Groq, Gemini and LiteLLM.
_NO_TOOLS = _compile_unsupported(
    _TOOLS,
    "tools param requires",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "no endpoints found that support tool use",
)
_NO_SCHEMA = _compile_unsupported(_FORMAT)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")


class _ErrorBody(NamedTuple):
    message: str
    words: str
    """The text that the patterns are matched against."""
    retry_after_seconds: float | None


def failure_of_status(server: Server, status: int, body: object, *, headers: Mapping[str, str]) -> CallFailed:
    """Build the failure for an answer with an error status."""
    error = _read(body)
    message = f"{server.provider} answered {status}: {_clean(error.message, server)}"
    after = parse_retry_after(headers)
    wait = error.retry_after_seconds if after is None else after
    # The body decides too: an exhausted quota and a full window come with ordinary statuses.
    kind, hint = _classify(status, error.words, server)
    # OpenAI and Anthropic forbid retries with this header.
    may_retry = headers.get("x-should-retry", "").strip().lower() != "false"
    return kind(message, hint=hint, status=status, retry_after_seconds=wait, may_retry=may_retry)


def failure_of_event(server: Server, error: Wire) -> CallFailed:
    """Build the failure for an error within a stream, which has an error type instead of a status."""
    body = _read({"error": error})
    # Anthropic names the kind in `type`, OpenAI's responses in `code`, Google in `status`.
    word = as_text(error.get("type")) or as_text(error.get("code")) or as_text(error.get("status"))
    status = _STATUS_OF_WORD.get(word, 500)
    code = error.get("code")
    if isinstance(code, int) and not isinstance(code, bool):
        status = code
    kind, hint = _classify(status, body.words, server)
    message = f"{server.provider} ended the stream with an error: {_clean(body.message, server)}"
    return kind(message, hint=hint, status=status, retry_after_seconds=body.retry_after_seconds)


def parse_retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Read the seconds to wait from `retry-after-ms`, or from `retry-after` as a number or a date; None without one."""
    # Not a standard header, but more precise: OpenAI and Azure send both.
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def single_line(text: str) -> str:
    """Return untrusted text as one bounded line without control characters."""
    return one_line("".join(c if c.isprintable() else " " for c in text), _MESSAGE_LENGTH)


_NO_TOOL_CALLS = "Run `agent config set model.structured_output_mode json`, or use another model"
_SMALLER = (
    "Run `agent config set model.max_context_tokens TOKENS` with a lower number, or use a model with a larger window"
)


def _classify(status: int, words: str, server: Server) -> tuple[type[CallFailed], str]:
    """Return the class and the hint of a failure."""
    # The order matters: an exhausted quota comes as 429 too, and a window that is too small as 400.
    if status < 500 and (status == 402 or _NO_QUOTA.search(words)):
        return QuotaExhausted, f"Add credit or raise the limit in your {server.provider} account"
    if status in {400, 413, 422} and _TOO_LONG.search(words):
        return ContextTooLong, _SMALLER
    if status in _REJECTIONS and _NO_TOOLS.search(words):
        return ToolsUnsupported, _NO_TOOL_CALLS
    if status in _REJECTIONS and _NO_SCHEMA.search(words):
        return SchemaUnsupported, "Use another model, or a newer server"
    if status in {401, 403} or (status == 400 and _BAD_KEY.search(words)):
        return AuthFailed, f"Check the {server.provider} API key and its permissions"
    if status in {404, 405, 410}:
        return NotFound, "Check model.name and the base URL"
    if kind := _KIND_OF_STATUS.get(status):
        return kind, ""
    if status >= 500:
        return ServerFailed, ""
    return BadRequest if status >= 400 else ReplyBroken, ""


_REJECTIONS = frozenset({400, 404, 405, 422, 500, 501})
"""Statuses that servers send for a parameter that they don't support."""

_KIND_OF_STATUS: Mapping[int, type[CallFailed]] = {
    408: TimedOut,
    425: Overloaded,
    429: RateLimited,
    503: Overloaded,
    504: TimedOut,
    # Anthropic's own status.
    529: Overloaded,
}

_STATUS_OF_WORD: Mapping[str, int] = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def _read(body: object) -> _ErrorBody:
    value = as_list(body)[0] if as_list(body) else body
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("utf-8", "replace")
        return _ErrorBody(text, text, None)
    outer = as_object(value)
    inner = outer.get("error")
    # Some servers send {"error": "text"}, some the inner object only.
    error = as_object(inner) or outer
    message = as_text(error.get("message")) or as_text(inner) or as_text(outer.get("detail")) or "no explanation"
    return _ErrorBody(message, json.dumps(outer, default=str), _retry_delay(error))


def _retry_delay(error: Wire) -> float | None:
    # Google sends the wait in the body instead of a header.
    for detail in as_objects(error.get("details")):
        found = _DURATION.fullmatch(as_text(detail.get("retryDelay")))
        if found:
            return float(found[1])
    return None


def _clean(message: str, server: Server) -> str:
    # Servers quote keys back. A shorter text is not a key and might occur anywhere in the message.
    shown = message.replace(server.key, "[key]") if len(server.key) >= 8 else message
    return single_line(shown)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None  # also None for `nan` and `inf`
