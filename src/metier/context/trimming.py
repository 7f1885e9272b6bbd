"""Trimming of prompts that are too large, the least useful parts first. Pure and deterministic.

The order, each only as far as needed:

    1  text of skills that are no longer active
    2  old results: head and tail of each, then one line, the oldest first
    3  old turns as a whole; each step stays as one line
    4  the previous conversation, its summary, the lines of step 3
    5  the newest results, down to `FIRST_CUT` characters each
    6  text of the active skill, and results that were removed once and requested again
    7  the newest results, down to the last of `NEWEST_CHARACTERS`

The overview of the active skill, the system layers and the task are never removed, and a call is never separated from
its result. Removals of the run are recorded (`Trim`) and permanent, so the next request starts with the same bytes.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metier.context.layers import Disclosed, Exchange, Prompt, render_steps
from metier.context.tokens import TokenCounter, estimate_tokens
from metier.decisions import StepExecutionResult
from metier.messages import Message, Part, TextPart, ToolResultPart
from metier.telemetry.excerpt import one_line
from metier.values import StoredValue

KEPT_TURNS = 2
"""Number of latest turns that are never removed as a whole."""
SLACK = 5
"""Old results are shortened until a fifth of the budget is free, so that several turns share one prefix."""
DROPPED_TOGETHER = 4
"""Turns are removed in groups of this size, so that several requests start with the same turn."""
SHORT_CHARACTERS = 2_000
LINE_CHARACTERS = 160
NEWEST_CHARACTERS = (24_000, 16_000, 11_000, 8_000, 6_000, 4_000, 2_500, 1_500, 800, 400)
FIRST_CUT = 6_000
READING_TOOL = "read_skill_files"
AGAIN = "call the tool again if you need them"

_LINE = "[Result: "
_MARK = re.compile(r"\n\[… (\d{1,12}) characters taken out to save room; [a-z ]{1,60} …\]\n")

type Size = Literal["short", "line", "gone"]


class Trim(StoredValue, frozen=True, kw_only=True):
    """A removal from a request and all later ones."""

    what: Literal["exchange", "piece"]
    exchange: int = 0
    """Number of the exchange in the run."""
    size: Size = "short"
    characters: int = 0
    """For `short`: maximum length of each result."""
    digest: str = ""
    """Digest of the piece of skill text."""


@dataclass(slots=True, kw_only=True)
class Trimmer:
    """A prompt being trimmed. `excess` is the number of tokens over the limit, or below zero the free tokens."""

    whole: Prompt
    counter: TokenCounter
    excess: int
    limit: int
    trims: list[Trim] = field(default_factory=list[Trim])
    """Removals that apply to later requests too."""
    labels: list[str] = field(default_factory=list[str])
    """All removals, for display."""
    prompt: Prompt = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.whole

    def trim(self) -> Prompt:
        """Apply as many steps as needed. The result may still be too large."""
        steps: tuple[Callable[[], None], ...] = (
            self._drop_foreign_pieces,
            lambda: self._shrink(self._list_old(), "short", SHORT_CHARACTERS),
            lambda: self._shrink(self._list_old(), "line"),
            self._drop_turns,
            self._drop_conversation,
            lambda: self._cut_newest(FIRST_CUT),
            lambda: self._shrink(self._list_precious(), "short", SHORT_CHARACTERS),
            lambda: self._shrink(self._list_precious(), "line"),
            self._drop_own_pieces,
            lambda: self._cut_newest(NEWEST_CHARACTERS[-1]),
        )
        for step in steps:
            if self.excess <= 0:
                break
            step()
        return self.prompt

    def _list_old(self) -> list[Exchange]:
        return [each for each in self._list_before_newest() if not self._is_precious(each)]

    def _list_precious(self) -> list[Exchange]:
        return [each for each in self._list_before_newest() if self._is_precious(each)]

    def _list_before_newest(self) -> list[Exchange]:
        newest = _get_newest(self.prompt.run)
        return [each for each in self.prompt.run if each.number and each.number != newest]

    def _is_precious(self, exchange: Exchange) -> bool:
        """Return True if it shows the active skill, or repeats a result that an earlier request had lost."""
        return exchange.is_kept or (bool(exchange.skill) and exchange.skill == self.prompt.skill and exchange.reads)

    def _shrink(self, exchanges: Iterable[Exchange], size: Size, characters: int = 0) -> None:
        """Shorten old results, the oldest first, until there is spare room."""
        count = self._cut(exchanges, size, characters, enough=-self.limit // SLACK)
        if count:
            self.labels.append(f"run:results of {count} turns {'shortened' if size == 'short' else 'to one line'}")

    def _cut(self, exchanges: Iterable[Exchange], size: Size, characters: int, *, enough: int) -> int:
        """Shorten exchanges until the excess is down to `enough`, and return the number of shortened ones."""
        smaller: dict[int, Exchange] = {}
        for exchange in exchanges:
            if self.excess <= enough:
                break
            trim = Trim(what="exchange", exchange=exchange.number, size=size, characters=characters)
            after = _make_smaller(exchange, trim)
            if after is None or after is exchange:
                continue
            smaller[exchange.number] = after
            self.excess -= self._cost(exchange) - self._cost(after)
            self.trims.append(trim)
        if smaller:  # once for all of them: a run may have thousands
            run = tuple(smaller.get(each.number, each) for each in self.prompt.run)
            self.prompt = replace(self.prompt, run=run)
        return len(smaller)

    def _cut_newest(self, min_characters: int) -> None:
        """Shorten the newest results to the largest size that fits, always from the original text."""
        newest = _get_newest(self.prompt.run)
        if not newest:
            return
        for characters in NEWEST_CHARACTERS:
            if self.excess <= 0 or characters < min_characters:
                break
            self._restore_newest(newest)
            self._cut([each for each in self.prompt.run if each.number == newest], "short", characters, enough=0)
        cut = [trim.characters for trim in self.trims if trim.exchange == newest]
        if cut and cut[-1] >= min_characters:
            self.labels.append(f"run:newest results over {cut[-1]} characters")

    def _restore_newest(self, newest: int) -> None:
        now = next(each for each in self.prompt.run if each.number == newest)
        whole = next(each for each in self.whole.run if each.number == newest)
        if now is whole:
            return
        run = tuple(whole if each is now else each for each in self.prompt.run)
        self._change(replace(self.prompt, run=run), self._cost(now) - self._cost(whole))
        self.trims = [trim for trim in self.trims if trim.exchange != newest]

    def _drop_turns(self) -> None:
        """Remove old turns in groups, the oldest first, until there is spare room."""
        latest = {each.number for each in self.prompt.run[-KEPT_TURNS:]}
        old = [each for each in self._list_old() if each.number not in latest]
        gone: set[int] = set()
        earlier = list(self.prompt.earlier)
        listed = _estimate_steps(earlier)
        for exchange in old:
            if self.excess <= -self.limit // SLACK and len(gone) % DROPPED_TOGETHER == 0:
                break
            gone.add(exchange.number)
            earlier += exchange.steps
            # The removed turn's steps are listed instead, which takes some of the tokens back.
            before, listed = listed, _estimate_steps(earlier)
            self.excess -= self._cost(exchange) - (listed - before)
            self.trims.append(Trim(what="exchange", exchange=exchange.number, size="gone"))
        if gone:
            run = tuple(each for each in self.prompt.run if each.number not in gone)
            self.prompt = replace(self.prompt, run=run, earlier=tuple(earlier))
            self.labels.append(f"run:{len(gone)} turns")

    def _drop_conversation(self) -> None:
        while self.excess > 0 and self.prompt.conversation:
            rest = self.prompt.conversation[2:]
            # The rest starts with a user message, so that no result lacks its call.
            while rest and rest[0].role != "user":
                rest = rest[1:]
            gone = self.prompt.conversation[: len(self.prompt.conversation) - len(rest)]
            self._change(replace(self.prompt, conversation=rest), sum(map(self.counter.message, gone)))
            self.labels.append("conversation:oldest")
        if self.excess > 0 and self.prompt.summary:
            saved = estimate_tokens(self.prompt.layer("summary"))
            self._change(replace(self.prompt, summary=""), saved)
            self.labels.append("conversation:summary")
        if self.excess > 0 and self.prompt.earlier:
            saved = _estimate_steps(self.prompt.earlier)
            self._change(replace(self.prompt, earlier=()), saved)
            self.labels.append("run:summaries")

    def _drop_foreign_pieces(self) -> None:
        # Files first and the overview last, which tells the model what it can ask for again.
        self._drop_pieces([each for each in self.prompt.disclosed if each.skill != self.prompt.skill], (2, 3, 1))

    def _drop_own_pieces(self) -> None:
        """Remove files and script lists of the active skill that are not new, but never its overview."""
        own = [each for each in self.prompt.disclosed if each.skill == self.prompt.skill and not each.is_new]
        self._drop_pieces(own, (2, 3))

    def _drop_pieces(self, pieces: Sequence[Disclosed], stages: Sequence[int]) -> None:
        for piece in [piece for stage in stages for piece in pieces if piece.stage == stage]:
            if self.excess <= 0:
                return
            rest = tuple(other for other in self.prompt.disclosed if other is not piece)
            self._change(replace(self.prompt, disclosed=rest), self.counter.text(piece.text))
            self.trims.append(Trim(what="piece", digest=piece.digest))
            self.labels.append(f"disclosed:{piece.skill}:{piece.path}")

    def _change(self, prompt: Prompt, saved: int) -> None:
        self.prompt = prompt
        self.excess -= saved

    def _cost(self, exchange: Exchange) -> int:
        return self.counter.message(exchange.reply) + sum(map(self.counter.message, exchange.results))


class History(Struct, frozen=True, kw_only=True):
    """The turns of a run in the prompt, in full or shortened, and the steps of removed ones."""

    run: tuple[Exchange, ...]
    earlier: tuple[StepExecutionResult, ...] = ()


def apply_trims(history: History, trims: Iterable[Trim]) -> History:
    """Apply recorded trims."""
    # Unchanged turns stay the same objects, because token counts and wire forms are cached by identity.
    by_exchange: dict[int, list[Trim]] = {}
    for trim in trims:
        if trim.what == "exchange":
            by_exchange.setdefault(trim.exchange, []).append(trim)
    if not by_exchange:
        return history
    run: list[Exchange] = []
    earlier = list(history.earlier)
    for exchange in history.run:
        smaller: Exchange | None = exchange
        for trim in by_exchange.get(exchange.number, ()):
            smaller = _make_smaller(smaller, trim) if smaller is not None else None
        if smaller is None:
            earlier.extend(exchange.steps)
        else:
            run.append(smaller)
    return History(run=tuple(run), earlier=tuple(earlier))


def _make_smaller(exchange: Exchange, trim: Trim) -> Exchange | None:
    match trim.size:
        case "gone":
            return None
        case "line":
            # Only results are shortened: models imitate calls whose arguments were shortened.
            results = tuple(_map_texts(message, _to_line) for message in exchange.results)
        case "short":
            limit = trim.characters or SHORT_CHARACTERS
            results = tuple(_map_texts(message, lambda text: _shorten(text, limit)) for message in exchange.results)
    is_same = all(one is other for one, other in zip(results, exchange.results, strict=True))
    return exchange if is_same else replace(exchange, results=results)


def _map_texts(message: Message, change: Callable[[str], str]) -> Message:
    parts: tuple[Part, ...] = tuple(
        replace(part, text=text)
        if isinstance(part, ToolResultPart | TextPart) and (text := change(part.text)) is not part.text
        else part
        for part in message.parts
    )
    is_same = all(one is other for one, other in zip(parts, message.parts, strict=True))
    return message if is_same else replace(message, parts=parts)


def _shorten(text: str, limit: int) -> str:
    """Keep head and tail, with the total number of omitted characters between them."""
    if len(text) <= limit:
        return text
    before = _count_missing(text)
    room = max(0, limit - len(_mark(len(text) + before)))
    head, tail = room - room // 2, room // 2
    return f"{text[:head]}{_mark(len(text) - room + before)}{text[len(text) - tail :]}"


def _to_line(text: str) -> str:
    if len(text) <= 2 * LINE_CHARACTERS or text.startswith(_LINE):
        return text
    whole = len(text) + _count_missing(text)
    return f"{_LINE}{whole} characters taken out to save room; {AGAIN}. They began: {one_line(text, LINE_CHARACTERS)}]"


def _mark(characters: int) -> str:
    return f"\n[… {characters} characters taken out to save room; {AGAIN} …]\n"


def _count_missing(text: str) -> int:
    """Count the characters that marks in the text stand for, minus the marks themselves."""
    return sum(int(mark[1]) - len(mark[0]) for mark in _MARK.finditer(text))


def _estimate_steps(steps: Sequence[StepExecutionResult]) -> int:
    return estimate_tokens(render_steps(steps)) if steps else 0


def _get_newest(run: Sequence[Exchange]) -> int:
    return next((each.number for each in reversed(run) if each.number), 0)
