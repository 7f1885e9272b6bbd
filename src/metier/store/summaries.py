"""Summaries of conversations by extraction, without a model. Pure.

Each event is one line. If they don't all fit, half of the space is for the newest events and the rest for those that
share the most words with the others.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pydantic import JsonValue

from metier.store.contexts import MAX_SUMMARY_SIZE_CHARS, ContextEvent
from metier.telemetry.excerpt import cut_end

SUMMARY_EVENT_THRESHOLD = 50
"""Number of new events that triggers a summary: half of the stored events, so that all are summarized in time."""
_MAX_LINE_LENGTH = 240
_WORD = re.compile(r"\w{3,}")

type Summarizer = Callable[[str, Sequence[ContextEvent]], str]
"""Returns a new summary from the previous one and the events since, oldest first."""


def summarize_by_extraction(
    previous: str, events: Sequence[ContextEvent], *, max_characters: int = MAX_SUMMARY_SIZE_CHARS
) -> str:
    lines = [*previous.splitlines(), *(_render(event) for event in events)]
    return "\n".join(_select_lines(lines, max_characters))


def _render(event: ContextEvent) -> str:
    text = " ".join(" ".join(_texts(event.payload)).split())
    line = f"turn {event.turn_number} {event.event_type}"
    return cut_end(f"{line}: {text}" if text else line, _MAX_LINE_LENGTH)


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


def _select_lines(lines: list[str], max_characters: int) -> list[str]:
    """Select as many lines as fit, in their order."""
    words = [_list_words(line) for line in lines]
    counts = Counter(word for found in words for word in found)

    def weight(number: int) -> tuple[float, int]:
        found = words[number]
        return (sum(counts[word] for word in found) / max(1, len(found)), number)

    newest = _fill(lines, range(len(lines) - 1, -1, -1), max_characters // 2)
    room = max_characters - sum(len(lines[number]) + 1 for number in newest)
    others = sorted(set(range(len(lines))) - newest, key=weight, reverse=True)
    selected = newest | _fill(lines, others, room)
    return [line for number, line in enumerate(lines) if number in selected]


def _list_words(line: str) -> set[str]:
    # Numbers and ids differ between otherwise similar events, so they are ignored.
    return {word for word in _WORD.findall(line.lower()) if not any(map(str.isdigit, word))}


def _fill(lines: list[str], numbers: Iterable[int], room: int) -> set[int]:
    selected: set[int] = set()
    for number in numbers:
        room -= len(lines[number]) + 1
        if room < 0:
            break
        selected.add(number)
    return selected
