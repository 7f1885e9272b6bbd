"""Token estimates from the bytes of a text, calibrated with the vendor's counts. Pure.

Letters cost least, then digits and punctuation, then other scripts. A slightly high estimate wastes some context; a low
one fails the request.
"""

import json
from collections.abc import Callable, Iterable
from math import ceil

from metier.messages import MediaPart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from metier.providers.media_wire import count_media

# With spaces and line feeds, which are usually part of the token of a word.
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n"
_ASCII = bytes(range(128))
_WIDE = bytes(range(128, 256))
_DIGITS = b"0123456789"

# Average tokens per character, or per byte of other scripts. `SAFETY` makes the estimate slightly high.
PER_LETTER = 1 / 4.0
PER_DIGIT = 1 / 2.0
PER_MARK = 1 / 1.6
PER_WIDE_BYTE = 0.45
SAFETY = 1.1
MESSAGE_TOKENS = 6
"""Overhead of one message or call."""

_MAX_TEXTS = 64
"""Maximum number of cached texts: the layers of a prompt and disclosed pieces."""

_SPARE_MESSAGES = 512
"""Number of cached messages in addition to those of the history, which has two or three per turn."""

# Bounds, so that one odd report of a vendor can't make all later prompts tiny or too large.
MIN_FACTOR = 0.5
MAX_FACTOR = 3.0


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text before calibration."""
    raw = text.encode("utf-8", "surrogatepass")
    # `bytes.translate` counts in C, which is much faster than a loop or a regex.
    wide = len(raw.translate(None, _ASCII))
    rest = raw.translate(None, _LETTERS + _WIDE)
    marks = len(rest.translate(None, _DIGITS))
    digits = len(rest) - marks
    letters = len(raw) - wide - len(rest)
    return ceil(SAFETY * (letters * PER_LETTER + digits * PER_DIGIT + marks * PER_MARK + wide * PER_WIDE_BYTE))


def calibrate(factor: float, *, estimated: int, reported: int) -> float:
    """Return the next correction factor of a model. It rises at once and falls slowly, because too low is worse."""
    if estimated <= 0 or reported <= 0:
        return factor
    seen = min(MAX_FACTOR, max(MIN_FACTOR, reported / estimated))
    return seen if seen > factor else 0.8 * factor + 0.2 * seen


class TokenCounter:
    """Counts tokens. It caches the counts of layers, messages and tools, so that a long history isn't counted again."""

    def __init__(self, provider: str = "") -> None:
        """Create a counter. Images are counted by the rules of `provider`."""
        self._provider = provider
        self._texts: dict[str, int] = {}
        self._messages: dict[int, tuple[Message, int]] = {}
        self._tools: tuple[tuple[ToolSpec, ...], int] = ((), 0)
        self._items: tuple[object, ...] = ()
        """The items of the last call of `total`."""
        self._last: tuple[object, str] = (None, "")
        self._sums: list[int] = []
        """The running total up to each item."""

    def text(self, text: str) -> int:
        """Count a text that stays the same for many turns."""
        known = self._texts.get(text)
        if known is None:
            if len(self._texts) >= _MAX_TEXTS:
                self._texts.clear()
            known = self._texts[text] = estimate_tokens(text)
        return known

    def last[Key](self, key: Key, render: Callable[[Key], str]) -> str:
        """Return `render(key)`, cached for the same object."""
        if self._last[0] is not key:
            self._last = (key, render(key))
        return self._last[1]

    def message(self, message: Message) -> int:
        # The message is stored with its count, because the id of a deleted object may be used again.
        known = self._messages.get(id(message))
        if known is not None and known[0] is message:
            return known[1]
        tokens = MESSAGE_TOKENS + sum(self._part(part) for part in message.parts)
        self._messages[id(message)] = (message, tokens)
        return tokens

    def media(self, parts: Iterable[MediaPart]) -> int:
        return sum(count_media(self._provider, part) for part in parts)

    def _part(self, part: Part) -> int:
        match part:
            case MediaPart():
                return self.media((part,))
            case ToolResultPart():
                return _part_tokens(part) + self.media(part.media)
            case _:
                return _part_tokens(part)

    def tools(self, tools: tuple[ToolSpec, ...]) -> int:
        if self._tools[0] is not tools:
            self._tools = (tools, sum(tool_tokens(tool) for tool in tools))
        return self._tools[1]

    def total[Item](self, items: tuple[Item, ...], cost: Callable[[Item], int]) -> int:
        """Sum the costs of a history, reusing the total of the prefix that it shares with the last one."""
        known = min(len(self._items), len(items))
        if self._items[:known] != items[:known]:  # cheap: comparing tuples checks identity first
            known = next(i for i, (one, other) in enumerate(zip(self._items, items, strict=False)) if one != other)
        del self._sums[known:]
        for item in items[known:]:
            self._sums.append((self._sums[-1] if self._sums else 0) + cost(item))
        self._items = items
        if len(self._messages) > _SPARE_MESSAGES + 4 * len(items):
            # Most are no longer in the prompt, and the running totals include the others.
            self._messages.clear()
        return self._sums[-1] if self._sums else 0


def tool_tokens(tool: ToolSpec) -> int:
    schema = json.dumps(tool.input_schema, separators=(",", ":"))
    return MESSAGE_TOKENS + estimate_tokens(tool.name + tool.description + schema)


def _part_tokens(part: TextPart | ThinkingPart | ToolCallPart | ToolResultPart) -> int:
    match part:
        case TextPart():
            return estimate_tokens(part.text)
        case ThinkingPart():
            return estimate_tokens(part.text + part.signature)
        case ToolCallPart():
            arguments = part.raw_arguments or json.dumps(part.arguments, ensure_ascii=False)
            return MESSAGE_TOKENS + estimate_tokens(part.name + arguments)
        case ToolResultPart():
            return MESSAGE_TOKENS + estimate_tokens(part.text)
