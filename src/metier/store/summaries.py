"""A short text of what happened in a conversation, made from its own words. Pure; a model may do it better.

One line an event; where they do not all fit, those go first that share the fewest words with the rest.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from pydantic import JsonValue

from metier.lazy_regex import lazy_regex
from metier.store.contexts import MAX_SUMMARY_SIZE_CHARS, ContextEvent
from metier.telemetry.excerpt import cut_end

SUMMARY_EVENT_THRESHOLD = 50
"""A summary is made when so many events are not in it; half of what is kept, so that none goes unsummarised."""
_LONGEST_LINE = 240
_WORD = lazy_regex(r"\w{3,}")

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
    return cut_end(line, _LONGEST_LINE)


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
    """As many lines as fit, in their order: by how common their words are, newer before older."""
    counts = Counter(word for line in lines for word in set(_WORD.findall(line.lower())))

    def weight(number: int) -> tuple[float, int]:
        words = set(_WORD.findall(lines[number].lower()))
        return (sum(counts[word] for word in words) / max(1, len(words)), number)

    kept: set[int] = set()
    room = most_characters
    for number in sorted(range(len(lines)), key=weight, reverse=True):
        room -= len(lines[number]) + 1
        if room < 0:
            break
        kept.add(number)
    return [line for number, line in enumerate(lines) if number in kept]
