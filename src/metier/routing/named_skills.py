"""Skills that a request calls by name. Pure.

A call is `/name`, `$name`, "the code review skill" or a request that only consists of the name. At the start of a
sentence or after a verb such as "use", a name in backticks or a hyphenated name (`code-review`) is also a call.

Other occurrences are not calls: "GET endpoint /health" doesn't ask for the skill `health`, nor "our customer-support
agent" for the skill `customer-support`, and large catalogs have skills named `review` and `image`. A false call would
displace the right skill, so such words only count as words of the name.
"""

import re
from collections.abc import Container, Iterator, Mapping
from itertools import islice

from metier.routing.words import FUNCTION_WORDS

MAX_NAME_LENGTH = 5
"""Maximum number of words of a name next to the word "skill"."""
MAX_MENTIONS = 32
"""Maximum number of checked occurrences of "skill" and of names. Requests have one or two; pasted text has many."""

_NOT_NAME = re.compile(r"[\W_]+")
_SIGIL = re.compile(r"[/$](?<![\w/$.~-][/$])([^\W_][\w.:-]*)(?![\w/])")
_BACKTICKS = re.compile(r"`([^`\n]{1,80})`")
_JOINED = re.compile(r"\b(?<![\w/.-])([^\W_]++(?:[-_.:]++[^\W_]++)+)(?![\w/])")
_SKILL = re.compile(r"\bskills?\b", re.IGNORECASE)
_CALLED_BY = re.compile(
    r"(?:^|[\n.!?:;,(]|\b(?:appl[yi]\w*|call\w*|execut\w+|follow\w*|invok\w+|launch\w*|load\w*|please|run\w*|start\w*"
    r"|then|through|trigger\w*|try|use|using|via|with)(?:\s+(?:the|my|our|this))?)[\s*_`\"]*$",
    re.IGNORECASE,
)
"""Text in front of a called name."""
_PATH_BEFORE = re.compile(
    r"(?:\b(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS)|\b(?i:apis?|at|cd|dir|directory|directories|endpoints?|folders?|from|in"
    r"|into|ls|mount\w*|on|pages?|paths?|routes?|under|ur[il]s?|visit)(?:\s+(?:are|for|is|like|of|to))?)[\s:(`\"]*$"
)
"""Text in front of a slash that starts a path."""
_PATH_AFTER = re.compile(
    r"[\s`\")]*(?:apis?|dir|directory|endpoints?|folder|handler|pages?|paths?|routes?|ur[il])\b", re.IGNORECASE
)
_PATH_LIST = re.compile(r"(?:[/$][\w.:-]*[\s,`]*(?:\([^)\n]{0,40}\)[\s,]*)?(?:(?:and|or)\s+)?)+$")
"""Earlier paths of an enumeration."""
_CONTEXT = 120
"""Number of characters checked in front of a name."""


def normal_name(name: str) -> str:
    """Normalize a name: `My_Skill`, `my skill` and `my-skill` are the same."""
    return _NOT_NAME.sub("-", name.lower()).strip("-")


def list_named(text: str, by_name: Mapping[str, tuple[int, ...]]) -> list[int]:
    """List the named skills, the clearest calls first: sigil, backticks, hyphenated, next to "skill", whole request."""
    found: dict[int, None] = {}
    for name in _list_names(text, by_name):
        for number in by_name.get(name, ()):
            found.setdefault(number)
    return list(found)


def _list_names(text: str, known: Container[str]) -> Iterator[str]:
    for match in _find_known(_SIGIL, text, known):
        if not _is_path(text, match):
            yield normal_name(match.group(1))
    for pattern in (_BACKTICKS, _JOINED):
        for match in _find_known(pattern, text, known):
            if _CALLED_BY.search(text[max(0, match.start() - _CONTEXT) : match.start()]):
                yield normal_name(match.group(1))
    mentions = _SKILL.finditer(text) if "skill" in text.casefold() else ()
    for match in islice(mentions, MAX_MENTIONS):
        yield from _list_neighbors(
            text[max(0, match.start() - 200) : match.start()], text[match.end() : match.end() + 200]
        )
    if len(text) <= 200:
        yield normal_name(text)


def _find_known(pattern: re.Pattern[str], text: str, known: Container[str]) -> Iterator[re.Match[str]]:
    # Only names in the catalog: checking the context of every path of a pasted log would take too long.
    return islice((match for match in pattern.finditer(text) if normal_name(match.group(1)) in known), MAX_MENTIONS)


def _is_path(text: str, match: re.Match[str]) -> bool:
    """Return True if the text around the sigil indicates a path or a shell variable."""
    if match.group().startswith("$"):
        # An environment variable such as `$PATH`. Names of skills are in lower case.
        return match.group(1).isupper()
    before = _PATH_LIST.sub("", text[max(0, match.start() - _CONTEXT) : match.start()])
    return bool(_PATH_BEFORE.search(before) or _PATH_AFTER.match(text, match.end()))


def _list_neighbors(before: str, after: str) -> Iterator[str]:
    left, right = normal_name(before).split("-"), normal_name(after).split("-")
    for length in range(MAX_NAME_LENGTH, 0, -1):
        for words in (left[-length:], right[:length]):
            if len(words) == length and not FUNCTION_WORDS.issuperset(words):
                yield "-".join(words)
