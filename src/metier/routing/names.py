"""Find skills that a request calls by their name. Pure.

Calling is `/name`, `$name`, a name of several words written as one (`code-review`, `code_review`), a name in backticks,
"the code review skill", or a request that is the name and nothing else. A name that merely occurs as ordinary words in
running text is not a call: in a large catalog `review`, `image` and `react native` are names too, and would push the
skill that is meant off the list. Such words count in the ranking as words of the name.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from metier.routing.word_lists import FUNCTION_WORDS

LONGEST_NAME = 5
"""Words of a name that are looked for beside the word "skill"."""
MOST_MENTIONS = 32
"""Occurrences of "skill" that are looked at; a request has one or two."""

_NOT_NAME = re.compile(r"[\W_]+")
_SIGIL = re.compile(r"[/$](?<![\w/$.~-][/$])([^\W_][\w.:-]*)(?![\w/])")
_BACKTICKS = re.compile(r"`([^`\n]{1,80})`")
_JOINED = re.compile(r"\b(?<![\w/.-])[^\W_]++(?:[-_.:]++[^\W_]++)+(?![\w/])")
_SKILL = re.compile(r"\bskills?\b", re.IGNORECASE)


def normal_name(name: str) -> str:
    """Lower case with single hyphens, so that `My_Skill`, `my skill` and `my-skill` are one name."""
    return _NOT_NAME.sub("-", name.lower()).strip("-")


def find_named(text: str, by_name: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Skills named in the text, the plainest call first: by sigil, in backticks, joined, beside "skill", alone."""
    found: dict[int, None] = {}
    for name in _names(text):
        for number in by_name.get(name, ()):
            found.setdefault(number)
    return list(found)


def _names(text: str) -> Iterator[str]:
    for pattern in (_SIGIL, _BACKTICKS):
        for match in pattern.finditer(text):
            yield normal_name(match.group(1))
    for match in _JOINED.finditer(text):
        yield normal_name(match.group())
    mentions = _SKILL.finditer(text) if "skill" in text.casefold() else ()
    for match in islice(mentions, MOST_MENTIONS):
        yield from _beside(text[max(0, match.start() - 200) : match.start()], text[match.end() : match.end() + 200])
    if len(text) <= 200:
        yield normal_name(text)


def _beside(before: str, after: str) -> Iterator[str]:
    left, right = normal_name(before).split("-"), normal_name(after).split("-")
    for length in range(LONGEST_NAME, 0, -1):
        for words in (left[-length:], right[:length]):
            if len(words) == length and not FUNCTION_WORDS.issuperset(words):
                yield "-".join(words)
