"""Facts in what a person says: sentences that ask to be remembered, or that say who and what things are. Pure.

A net for what must not be lost where no model sums up, or one sums up badly. It knows a few plain English forms; what
it misses can be said with `/remember`.
"""

import re
from collections.abc import Iterator

from metier.context.conversation import KnownFact
from metier.lazy_regex import lazy_regex

LONGEST_FACT = 300
LONGEST_KEY = 80
MOST_FROM_ONE_MESSAGE = 10

_SENTENCE = lazy_regex(r"(?:[^.!?\n]|[.!?](?=\S))+[.!?]?")
_ASKED = lazy_regex(
    r"(?:please[, ]+)?(?:remember|keep in mind|note|(?:don't|do not) forget)(?:[, ]+that|:)[:, ]*(?P<rest>.{3,})",
    re.IGNORECASE,
)
_LEAD = lazy_regex(r"(?:(?:and|so|also|btw|by the way|well|hi|hello|hey|fyi)\b[,: ]*)+", re.IGNORECASE)
_IS = lazy_regex(
    r"(?P<key>(?:my|our|the) [\w][\w '’/-]{0,60}?) (?:is|are|will be|must be) (?!it\b|that\b).+",
    re.IGNORECASE,
)
_CALLED = lazy_regex(r"(?:please )?(?:call me|i am called|i'm called) .+", re.IGNORECASE)
_SELF = lazy_regex(
    r"(?:i am|i'm) (?:an?|the|from|based in) .+"
    r"|i (?:live|work|prefer|always|never|speak) .+"
    r"|we (?:use|prefer|always|never|deploy) .+"
    r"|(?:always|never) \w+ .+",
    re.IGNORECASE,
)


def find_facts(message: str) -> tuple[KnownFact, ...]:
    """What a message says that should not be forgotten, in its own words; questions say nothing."""
    found: dict[str, KnownFact] = {}
    for sentence in _split(message):
        fact = _read(sentence)
        if fact is not None:
            found.setdefault(fact.key, fact)
    return tuple(found.values())[:MOST_FROM_ONE_MESSAGE]


def parse_facts(lines: str) -> tuple[KnownFact, ...]:
    """Those that a model lists, `- name: what` each."""
    found: dict[str, KnownFact] = {}
    for line in lines.splitlines():
        key, colon, text = line.strip().lstrip("-*• ").partition(":")
        key, text = _tidy(key).strip("*`\"'"), _tidy(text)
        if colon and key and text and len(key) <= LONGEST_KEY:
            found[key.casefold()] = KnownFact(key=key.casefold(), text=text[:LONGEST_FACT])
    return tuple(found.values())


def name_fact(text: str) -> str:
    """A short name for a fact without one."""
    matched = _IS.fullmatch(text)
    return matched["key"].casefold() if matched else " ".join(text.split())[:LONGEST_KEY].casefold().rstrip(" .!,")


def _split(message: str) -> Iterator[str]:
    for match in _SENTENCE.finditer(message):
        sentence = _tidy(match.group())
        if sentence and not sentence.endswith("?"):
            yield sentence


def _read(sentence: str) -> KnownFact | None:
    if len(sentence) > LONGEST_FACT:
        return None
    sentence = _LEAD.sub("", sentence, count=1) if _LEAD.match(sentence) else sentence
    asked = _ASKED.fullmatch(sentence)
    text = asked["rest"] if asked else sentence
    if _CALLED.fullmatch(text):
        return KnownFact(key="my name", text=text)
    # "The tests are red" is news; "remember that the code is 4711" is not.
    is_news = text.casefold().startswith("the ") and not asked
    if (asked or _IS.fullmatch(text) or _SELF.fullmatch(text)) and not is_news:
        return KnownFact(key=name_fact(text), text=text)
    return None


def _tidy(text: str) -> str:
    return " ".join(text.split())
