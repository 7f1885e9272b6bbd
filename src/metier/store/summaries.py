"""A short text of what happened in a conversation, made from its own words. Pure; a model may do it better.

One line an event. If they don't all fit, half of the room is for the newest events, the rest for those that share the
most words with the others.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pydantic import JsonValue

from metier.store.contexts import MAX_SUMMARY_SIZE_CHARS, ContextEvent
from metier.telemetry.excerpt import cut_end

SUMMARY_EVENT_THRESHOLD = 50
"""A summary is made when so many events are not in it; half of what is kept, so that none goes unsummarised."""
_MAX_LINE_LENGTH = 240
_WORD = re.compile(r"\w{3,}")

type Summarizer = Callable[[str, Sequence[ContextEvent]], str]
"""From the summary so far and the events since, oldest first, the new summary."""


def summarize_by_extraction(
    previous: str, events: Sequence[ContextEvent], *, most_characters: int = MAX_SUMMARY_SIZE_CHARS
) -> str:
    lines = [*previous.splitlines(), *(_render(event) for event in events)]
    return "\n".join(_keep_best(lines, most_characters))


def _render(event: ContextEvent) -> str:
    said = " ".join(" ".join(_texts(event.payload)).split())
    line = (
        f"turn {event.turn_number} {event.event_type}: {said}"
        if said
        else f"turn {event.turn_number} {event.event_type}"
    )
    return cut_end(line, _MAX_LINE_LENGTH)


def _texts(value: JsonValue) -> list[str]:
    match value:
        case dict():
            return [f"{key}={' '.join(_texts(item))}" for key, item in value.items()]
        case list():
            return [text for item in value for text in _texts(item)]
        case None:
            return []
        case _:
            return [str(value)]


def _keep_best(lines: list[str], most_characters: int) -> list[str]:
    """As many lines as fit, in their order."""
    words = [_list_words(line) for line in lines]
    counts = Counter(word for found in words for word in found)

    def weight(number: int) -> tuple[float, int]:
        found = words[number]
        return (sum(counts[word] for word in found) / max(1, len(found)), number)

    newest = _fill(lines, range(len(lines) - 1, -1, -1), most_characters // 2)
    room = most_characters - sum(len(lines[number]) + 1 for number in newest)
    others = sorted(set(range(len(lines))) - newest, key=weight, reverse=True)
    kept = newest | _fill(lines, others, room)
    return [line for number, line in enumerate(lines) if number in kept]


def _list_words(line: str) -> set[str]:
    """Without numbers and ids: they differ in events that otherwise resemble each other, and say nothing about them."""
    return {word for word in _WORD.findall(line.lower()) if not any(map(str.isdigit, word))}


def _fill(lines: list[str], numbers: Iterable[int], room: int) -> set[int]:
    kept: set[int] = set()
    for number in numbers:
        room -= len(lines[number]) + 1
        if room < 0:
            break
        kept.add(number)
    return kept
