"""How many tokens a text costs, estimated from its bytes and corrected by what the model's vendor reported. Pure.

Letters are cheap, digits and punctuation dear, bytes of other scripts dearer; an estimate that is a little too high
costs some context, one that is too low costs the request.
"""

import json
from collections.abc import Callable, Iterable
from math import ceil

from metier.messages import MediaPart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from metier.providers.media import count_media

_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n"
_ASCII = bytes(range(128))
_WIDE = bytes(range(128, 256))
_DIGITS = b"0123456789"

PER_LETTER = 1 / 4.0
PER_DIGIT = 1 / 2.0
PER_MARK = 1 / 1.6
PER_WIDE_BYTE = 0.45
SAFETY = 1.1
MESSAGE_TOKENS = 6
"""What a vendor's wrapping of one message or call costs on top of its text."""

_MAX_TEXTS = 64
"""Remembered at once: the layers of a prompt and what was disclosed."""

_SPARE_MESSAGES = 512
"""Remembered beyond those of the history, which has two or three messages a turn."""

LEAST_FACTOR = 0.5
MAX_FACTOR = 3.0


def estimate_tokens(text: str) -> int:
    """Tokens of a text, before calibration. Zero only for nothing."""
    raw = text.encode("utf-8", "surrogatepass")
    wide = len(raw.translate(None, _ASCII))
    rest = raw.translate(None, _LETTERS + _WIDE)
    marks = len(rest.translate(None, _DIGITS))
    digits = len(rest) - marks
    letters = len(raw) - wide - len(rest)
    return ceil(SAFETY * (letters * PER_LETTER + digits * PER_DIGIT + marks * PER_MARK + wide * PER_WIDE_BYTE))


def calibrate(factor: float, *, estimated: int, reported: int) -> float:
    """The next correction for a model: follows what was reported upwards at once, downwards slowly."""
    if estimated <= 0 or reported <= 0:
        return factor
    seen = min(MAX_FACTOR, max(LEAST_FACTOR, reported / estimated))
    return seen if seen > factor else 0.8 * factor + 0.2 * seen


class TokenCounter:
    """Counts layers, messages and tools once each: a long history costs next to nothing to count again."""

    def __init__(self, provider: str = "") -> None:
        """`provider` says how pictures are counted."""
        self._provider = provider
        self._texts: dict[str, int] = {}
        self._messages: dict[int, tuple[Message, int]] = {}
        self._tools: tuple[tuple[ToolSpec, ...], int] = ((), 0)
        self._items: tuple[object, ...] = ()
        """The items that were summarized last."""
        self._last: tuple[object, str] = (None, "")
        self._sums: list[int] = []
        """The summarize to each of them."""

    def text(self, text: str) -> int:
        """For texts that stay the same for many turns."""
        known = self._texts.get(text)
        if known is None:
            if len(self._texts) >= _MAX_TEXTS:
                self._texts.clear()
            known = self._texts[text] = estimate_tokens(text)
        return known

    def last[Key](self, key: Key, render: Callable[[Key], str]) -> str:
        """What `render` makes of `key`, kept for the next time it is this very object."""
        if self._last[0] is not key:
            self._last = (key, render(key))
        return self._last[1]

    def message(self, message: Message) -> int:
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
        """The summed cost of a history; what it shares with the one before, from its beginning, is not summed again."""
        known = min(len(self._items), len(items))
        if self._items[:known] != items[:known]:  # tuples look at identity first, which is cheap
            known = next(i for i, (one, other) in enumerate(zip(self._items, items, strict=False)) if one != other)
        del self._sums[known:]
        for item in items[known:]:
            self._sums.append((self._sums[-1] if self._sums else 0) + cost(item))
        self._items = items
        if len(self._messages) > _SPARE_MESSAGES + 4 * len(items):
            self._messages.clear()  # most are no longer told; those that are have their sums
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
