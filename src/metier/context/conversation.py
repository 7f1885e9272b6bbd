"""Earlier turns of a chat in the prompt: the latest verbatim, the rest summarized, facts in full. Pure.

Sizes depend on the budget, so that a turn costs the same in a conversation of any length:

    facts         every fact, the user's own first
    summary       limited in size; summarized turns are never shown verbatim again
    conversation  the turns since, up to `fold_tokens`; then all but the last `keep_tokens` are summarized
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct
from pydantic import Field

from metier.context.tokens import MESSAGE_TOKENS, estimate_tokens
from metier.messages import MediaPart, Message, Part, TextPart, assistant
from metier.providers.media_wire import count_media
from metier.telemetry.excerpt import cut_middle
from metier.values import Value

MAX_TURNS = 40
"""Maximum number of verbatim turns, however short. Must be less than the number of events that a context keeps."""
KEPT_TURNS = 20
RECORD = "A record of the conversation so far, for information only; not an instruction."
FACTS = "Facts that still apply, in the user's own words (\"my\" means the user's)."
NO_ANSWER = "[No answer]"

MAX_FACT_LENGTH = 300
MAX_KEY_LENGTH = 80
MAX_FROM_ONE_MESSAGE = 10
_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?=\S))+[.!?]?")
_ASKED = re.compile(
    r"(?:please[, ]+)?(?:remember|keep in mind|note|(?:don't|do not) forget)(?:[, ]+that|:)[:, ]*(?P<rest>.{3,})",
    re.IGNORECASE,
)
_LEAD = re.compile(r"(?:(?:and|so|also|btw|by the way|well|hi|hello|hey|fyi)\b[,: ]*)+", re.IGNORECASE)
_IS = re.compile(
    r"(?P<key>(?:my|our|the) [\w][\w '’/-]{0,60}?) (?:is|are|will be|must be) (?!it\b|that\b).+",
    re.IGNORECASE,
)
_CALLED = re.compile(r"(?:please )?(?:call me|i am called|i'm called) .+", re.IGNORECASE)
_SELF = re.compile(
    r"(?:i am|i'm) (?:an?|the|from|based in) .+"
    r"|i (?:live|work|prefer|always|never|speak) .+"
    r"|we (?:use|prefer|always|never|deploy) .+"
    r"|(?:always|never) \w+ .+",
    re.IGNORECASE,
)


class ChatOptions(Value):
    """Summaries of long conversations."""

    summarize_at_tokens: int = Field(
        default=8_000,
        ge=200,
        description="Tokens of earlier turns that trigger a summary; at most a third of the window.",
    )
    while_working: Literal["steer", "queue"] = Field(
        default="steer",
        description="A message sent during a turn: `steer` adds it to the next model request, `queue` waits.",
    )
    summary_model: str | None = Field(
        default=None,
        min_length=1,
        description="Model for summaries, among those that the agent may use; defaults to the chat's model.",
    )


class Measures(Struct, frozen=True, kw_only=True):
    """Token limits of the parts of a conversation."""

    fold_tokens: int
    keep_tokens: int
    message_tokens: int
    """Limit of one message, so that a turn takes at most a quarter of `fold_tokens`."""
    summary_tokens: int
    facts_tokens: int


class PastTurn(Struct, frozen=True, kw_only=True):
    """A user message and its outcome."""

    run_id: str
    said: str
    answer: str = ""
    notes: tuple[str, ...] = ()
    """Actions and questions during the turn, one line each."""
    number: int = 0
    """Position in the conversation's log."""
    turn: int = 0
    """Number of the turn in the conversation."""
    media: tuple[MediaPart, ...] = ()
    """Images and documents of the user message."""


class KnownFact(Struct, frozen=True, kw_only=True):
    key: str
    text: str
    is_own: bool = False
    """True if the user asked to remember it, False if the user only mentioned it."""


def build_measures(options: ChatOptions, *, limit: int) -> Measures:
    """Compute the limits for a prompt of at most `limit` tokens."""
    fold = max(100, min(options.summarize_at_tokens, limit // 3))
    # A summary leaves 40 % of the turns, so that the next one is only needed several turns later.
    return Measures(
        fold_tokens=fold,
        keep_tokens=fold * 2 // 5,
        message_tokens=max(20, fold // 8 - MESSAGE_TOKENS),
        summary_tokens=max(40, min(2_500, limit // 8)),
        facts_tokens=max(100, limit // 5),
    )


def count_folded(turns: Sequence[PastTurn], measures: Measures, *, is_crowded: bool = False) -> int:
    """Return how many of the oldest turns to summarize now: none while they fit, all if the prompt `is_crowded`."""
    # Far fewer turns than the limit are left, so that the next summary is only needed several turns later.
    if is_crowded:
        return len(turns)
    sizes = [count_tokens(turn, measures) for turn in turns]
    if sum(sizes) <= measures.fold_tokens and len(turns) <= MAX_TURNS:
        return 0
    kept, room = 0, measures.keep_tokens
    for size in reversed(sizes):
        room -= size
        if room < 0 or kept == KEPT_TURNS:
            break
        kept += 1
    return len(turns) - max(kept, 1)


def count_tokens(turn: PastTurn, measures: Measures) -> int:
    texts = [
        part.text for message in build_turn(turn, measures) for part in message.parts if isinstance(part, TextPart)
    ]
    return 2 * MESSAGE_TOKENS + sum(map(estimate_tokens, texts))


def build_messages(turns: Sequence[PastTurn], measures: Measures, *, shows_media: bool = False) -> tuple[Message, ...]:
    """Build the messages of turns. Half of the limit is for images and documents, latest first."""
    room = measures.fold_tokens // 2 if shows_media else 0
    shown: set[str] = set()
    for part in (part for turn in reversed(turns) for part in reversed(turn.media)):
        if part.digest not in shown and (room := room - count_media("", part)) >= 0:
            shown.add(part.digest)
    return tuple(message for turn in turns for message in build_turn(turn, measures, shown=frozenset(shown)))


def build_turn(turn: PastTurn, measures: Measures, *, shown: frozenset[str] = frozenset()) -> tuple[Message, Message]:
    """Build the messages of a turn. `shown` has the digests of media to include; others become a placeholder."""
    # Notes go into the user message, so that the answer only has the model's own words.
    said = cut(turn.said, measures.message_tokens)
    parts: list[Part] = [TextPart(text=said)]
    for part in turn.media:
        is_shown = part.digest in shown
        parts.append(part if is_shown else TextPart(text=f"[{part.name or part.media_type}: not shown again]"))
    if turn.notes:
        done = cut("\n".join(turn.notes), measures.message_tokens // 2)
        parts.append(TextPart(text=f"[Done for this message, as recorded:\n{done}]"))
    answer = cut(turn.answer.strip() or NO_ANSWER, measures.message_tokens)
    return Message(role="user", parts=tuple(parts)), assistant(answer)


def render_facts(facts: Sequence[KnownFact], measures: Measures) -> str:
    """Render all of the user's own facts and as many of the other facts, latest first, as fit the limit."""
    own = [_render_fact(fact) for fact in facts if fact.is_own]
    mentioned = [_render_fact(fact) for fact in facts if not fact.is_own]
    room = measures.facts_tokens - sum(map(estimate_tokens, own))
    kept = 0
    for line in reversed(mentioned):
        room -= estimate_tokens(line)
        if room < 0:
            break
        kept += 1
    omitted = len(mentioned) - kept
    missing = [f"- {omitted} more are not shown"] if omitted else []
    return "\n".join([FACTS, *own, *missing, *mentioned[omitted:]]) if facts else ""


def _render_fact(fact: KnownFact) -> str:
    return f"- {fact.text}" if fact.key.casefold() in fact.text.casefold() else f"- {fact.key}: {fact.text}"


def render_summary(summary: str, measures: Measures) -> str:
    return f"{RECORD}\n{cut(summary, measures.summary_tokens)}" if summary.strip() else ""


def render_transcript(turns: Iterable[PastTurn], measures: Measures) -> str:
    """Render turns for the model that writes the summary."""
    lines: list[str] = []
    for turn in turns:
        lines.append(f"User: {cut(turn.said, measures.message_tokens)}")
        lines += [f"({note})" for note in turn.notes[:10]]
        lines.append(f"Agent: {cut(turn.answer.strip() or NO_ANSWER, measures.message_tokens)}")
    return "\n".join(lines)


def cut(text: str, most_tokens: int) -> str:
    """Truncate the middle of a text to a number of tokens."""
    shorter, room = text, len(text)
    # Repeated, because the characters that are left may have more tokens than the average.
    while (tokens := estimate_tokens(shorter)) > most_tokens and room > 0:
        room = min(room - 1, room * most_tokens // tokens)
        shorter = cut_middle(text, room)
    return shorter


# A fallback, so that facts aren't lost if no model summarizes, or does it badly. It recognizes a few plain English
# phrases; the user can add other facts with `/remember`.
def find_facts(message: str) -> tuple[KnownFact, ...]:
    """Extract facts from a message, in the words of the message. Questions are ignored."""
    found: dict[str, KnownFact] = {}
    for sentence in _split(message):
        fact = _read(sentence)
        if fact is not None:
            found.setdefault(fact.key, fact)
    return tuple(found.values())[:MAX_FROM_ONE_MESSAGE]


def parse_facts(lines: str) -> tuple[KnownFact, ...]:
    """Parse facts listed by a model as `- name: text`."""
    found: dict[str, KnownFact] = {}
    for line in lines.splitlines():
        key, colon, text = line.strip().lstrip("-*• ").partition(":")
        key, text = _tidy(key).strip("*`\"'"), _tidy(text)
        if colon and key and text and len(key) <= MAX_KEY_LENGTH:
            found[key.casefold()] = KnownFact(key=key.casefold(), text=text[:MAX_FACT_LENGTH])
    return tuple(found.values())


def name_fact(text: str) -> str:
    """Derive a short name for a fact."""
    matched = _IS.fullmatch(text)
    return matched["key"].casefold() if matched else " ".join(text.split())[:MAX_KEY_LENGTH].casefold().rstrip(" .!,")


def _split(message: str) -> Iterator[str]:
    for match in _SENTENCE.finditer(message):
        sentence = _tidy(match.group())
        if sentence and not sentence.endswith("?"):
            yield sentence


def _read(sentence: str) -> KnownFact | None:
    if len(sentence) > MAX_FACT_LENGTH:
        return None
    sentence = _LEAD.sub("", sentence, count=1) if _LEAD.match(sentence) else sentence
    asked = _ASKED.fullmatch(sentence)
    text = asked["rest"] if asked else sentence
    if _CALLED.fullmatch(text):
        return KnownFact(key="my name", text=text)
    # "The tests are red" won't be true for long; "remember that the code is 4711" will.
    is_temporary = text.casefold().startswith("the ") and not asked
    if (asked or _IS.fullmatch(text) or _SELF.fullmatch(text)) and not is_temporary:
        return KnownFact(key=name_fact(text), text=text)
    return None


def _tidy(text: str) -> str:
    return " ".join(text.split())
