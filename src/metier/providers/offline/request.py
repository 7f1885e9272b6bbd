"""Split a request into parts, in the order in which they must be done. Pure: text in, texts out.

There are two kinds of joints. A *strong* one ("then", ";", a numbered list) always splits. At a *weak* one ("and
write …", ", find …", a new sentence) the planner, which knows the skills, decides. Nothing is split inside quotes, code
or brackets.
"""

import re
from bisect import bisect_right
from typing import NamedTuple

from msgspec import Struct, field

from metier.providers.offline.words import VERBS, list_content_words

READ_CHARACTERS = 20_000
"""Maximum length that is read; the result mentions the rest."""

type Span = tuple[int, int]

_AND = r"(?:and|und|et|y)"
_ENDED = rf"(?:[,;.!?]\s+(?:{_AND}\s+)?|\s+{_AND}\s+)"
_MAYBE_ENDED = rf"(?:[,;.!?])?\s+(?:{_AND}\s+)?"

_PROTECTED = re.compile(
    r"```.{0,5000}?```|`[^`\n]{0,500}`|\"[^\"]{0,1000}\"|“[^“”]{0,1000}[“”]|„[^„“”]{0,1000}[“”]|«[^«»]{0,1000}»"
    r"|(?<!\w)'[^'\n]{0,500}'(?!\w)|‘[^‘’\n]{0,500}’(?!\w)|「[^「」]{0,500}」|\((?!\d+\))[^()]{0,500}\)",
    re.DOTALL,
)
_THEN = re.compile(
    rf"{_MAYBE_ENDED}(?P<word>then|after\s+(?:that|this)|afterwards?|subsequently|thereafter|followed\s+by"
    r"|dann|danach|anschlie(?:ß|ss)end|puis|ensuite|après\s+cela|luego|después(?!\s+de\b)|a\s+continuación)\b[,:]?\s+",
    re.IGNORECASE,
)
_VERB_FIRST = re.compile(
    rf"(?:,\s+|\s+)(?:und\s+)?(?=(?:{'|'.join(VERBS)})\s+(?:dann|danach|anschließend|zuletzt|zum\s+schluss)\b)",
    re.IGNORECASE,
)
"""In German the verb precedes the joint: "und schreibe danach …"."""
_LATER = re.compile(
    rf"{_ENDED}(?:finally|lastly|at\s+the\s+end|in\s+the\s+end|zum\s+schluss|schlie(?:ß|ss)lich|zuletzt|abschließend"
    r"|enfin|finalement|finalmente|por\s+último|al\s+final)\b[,:]?\s+"
    rf"|{_ENDED}(?:next|second(?:ly)?|third(?:ly)?|fourth(?:ly)?|fifth|zweitens|drittens|deuxièmement"
    r"|segundo),\s+"
    rf"|[.;!?]\s+next\s+(?!steps?\b|week|month|year|time|to\b)"
    rf"|{_ENDED}(?:once|when|as\s+soon\s+as)\s+(?:that|this|it|you)(?:['’]s|['’]re|\s+is|\s+are)?\s+"
    r"(?:done|finished|complete|completed|ready),?\s+(?:then\s+)?",
    re.IGNORECASE,
)
_PLAIN = re.compile(r";\s+|\s+(?:->|=>|→)\s+|\n\s*\n")
_BUT_FIRST = re.compile(r"[,;.]?\s+but\s+(?:first|before\s+that)[,:]?\s+", re.IGNORECASE)
_WEAK = re.compile(
    rf"(?:,\s+(?:{_AND}\s+)?|\s+(?:{_AND}|&)\s+|[.!?]\s+|\n)(?=(?:please\s+|also\s+)*(?:{'|'.join(VERBS)})\b)",
    re.IGNORECASE,
)
_GERMAN = ("dann", "danach", "anschließend")
_CONDITION = re.compile(r"\b(?:if|whenever|unless|wenn|falls|si|cuando)\b[^.;!?\n]*$", re.IGNORECASE)
_IDIOM = re.compile(r"\b(?:since|until|till|by|even|back|just|only|now|the|than|bis|seit)$", re.IGNORECASE)

_ITEM = re.compile(
    r"^[ \t]*(?:\(?\d{1,3}[.):]|[-*•–]|\(?[a-h]\)|(?:step|schritt|étape|paso)\s+\d{1,3}\s*[:.)–-])[ \t]+",
    re.IGNORECASE | re.MULTILINE,
)
_INLINE_ITEM = re.compile(r"(?:^|(?<=\s))\(?(\d{1,2})[.)]\s+")
_OPENING = re.compile(
    r"^(?:[\s,;:.!?•*–-]+|(?:and|then|also|next|finally|lastly|und|et|y|dann|puis|luego)[,:]?\s+"
    r"|(?:first(?:ly)?|first\s+of\s+all|zuerst|zunächst|erstens|d['’]abord|tout\s+d['’]abord|primero|en\s+primer\s+lugar)[,:]\s+"
    r"|(?:start|begin)\s+by\s+|to\s+(?:start|begin)\s+with[,:]?\s+)",
    re.IGNORECASE,
)
_FIRST = re.compile(
    r"^(?:first(?:ly)?|first\s+of\s+all|zuerst|zunächst|erstens|d['’]abord|primero)[,:]?\s+", re.IGNORECASE
)
_AFTER_DOING = re.compile(r"^after\s+(\w+ing\b[^,]{1,300}),\s+(?:then\s+)?(.+)$", re.IGNORECASE | re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")


class Joint(NamedTuple):
    start: int
    end: int
    swaps: bool = False
    """The text after the joint must be done before the text in front of it."""


class RequestText(Struct, frozen=True):
    """A normalized, bounded request with the spans in which nothing is split."""

    text: str
    is_truncated: bool = False
    protected: tuple[Span, ...] = field(default=())

    def can_split(self, position: int) -> bool:
        """Return True outside quotes, code and brackets."""
        index = bisect_right(self.protected, (position, len(self.text) + 1)) - 1
        return index < 0 or not self.protected[index][0] < position < self.protected[index][1]


def read_request(text: str) -> RequestText:
    """Normalize a request: single spaces, no control characters, no lone surrogates, bounded length."""
    head = text[:READ_CHARACTERS].encode("utf-8", "replace").decode()
    lines = (" ".join(line.split()) for line in _CONTROL.sub(" ", head.replace("\r\n", "\n")).split("\n"))
    return _protect("\n".join(lines).strip(), is_truncated=len(text) > READ_CHARACTERS)


def split_parts(request: RequestText) -> list[str]:
    """Split at strong joints, in the order in which the parts must be done."""
    pieces = [part for item in _split_items(request) for part in _split_joints(_protect(item))]
    several = len(pieces) > 1
    stripped = [_strip_opening(piece, several=several) for piece in pieces]
    ordered = [part for piece in stripped for part in _split_after(piece)]
    return [part for part in ordered if list_content_words(part)]


def split_weakly(part: str) -> list[Span]:
    """Return the spans between weak joints. One word is not a piece: "find and list" is one action."""
    request = _protect(part)
    spans: list[Span] = []
    start = 0
    for match in _WEAK.finditer(part):
        if not request.can_split(match.start()) or len(part[start : match.start()].split()) < 2:
            continue
        spans.append((start, match.start()))
        start = match.end()
    return [*spans, (start, len(part))]


def _protect(text: str, *, is_truncated: bool = False) -> RequestText:
    return RequestText(text, is_truncated, tuple(match.span() for match in _PROTECTED.finditer(text)))


def _split_items(request: RequestText) -> list[str]:
    """Split a list of at least two items, keeping the text in front of it."""
    text = request.text
    marks = [match.span() for match in _ITEM.finditer(text) if request.can_split(match.start())]
    if len(marks) < 2:
        marks = _list_inline_items(request)
    if len(marks) < 2:
        return [text]
    before = text[: marks[0][0]].strip()
    ends = [start for start, _ in marks[1:]] + [len(text)]
    items = [text[mark[1] : end].strip() for mark, end in zip(marks, ends, strict=True)]
    # "Please do the following:" announces the list; it is not a task of its own.
    return items if not before or before.endswith((":", "：")) else [before, *items]


def _list_inline_items(request: RequestText) -> list[Span]:
    """List the items of `1) … 2) …` on one line, as long as the numbers are consecutive."""
    found: list[Span] = []
    for match in _INLINE_ITEM.finditer(request.text):
        if int(match.group(1)) == len(found) + 1 and request.can_split(match.start()):
            found.append(match.span())
    return found


def _split_joints(request: RequestText) -> list[str]:
    pieces: list[str] = []
    start, swaps = 0, False
    for joint in [*_list_joints(request), Joint(len(request.text), len(request.text))]:
        piece = request.text[start : joint.start].strip()
        if piece:
            pieces.insert(len(pieces) - (1 if swaps and pieces else 0), piece)
        start, swaps = joint.end, joint.swaps
    return pieces


def _list_joints(request: RequestText) -> list[Joint]:
    """List the strong joints in order, without overlaps."""
    found = [Joint(*match.span(), swaps=True) for match in _BUT_FIRST.finditer(request.text)]
    for pattern in (_VERB_FIRST, _LATER, _PLAIN):
        found += [Joint(*match.span()) for match in pattern.finditer(request.text)]
    found += [Joint(*match.span()) for match in _THEN.finditer(request.text) if _follows(request, match)]
    joints: list[Joint] = []
    for joint in sorted(found, key=lambda each: (each.start, -each.end)):
        if request.can_split(joint.start) and (not joints or joint.start >= joints[-1].end):
            joints.append(joint)
    return joints


def _follows(request: RequestText, match: re.Match[str]) -> bool:
    """Return False for the "then" of "if … then" or "until then", and for the "danach" of "schreibe danach"."""
    before = request.text[max(0, match.start() - 300) : match.start()]
    word = match.group("word").casefold()
    if word in ("then", "dann") and (_CONDITION.search(before) or _IDIOM.search(before)):
        return False
    return not (word in _GERMAN and before.rpartition(" ")[2].casefold() in VERBS)


def _strip_opening(piece: str, *, several: bool) -> str:
    """Remove words that only mark the order, such as "first"."""
    for _ in range(4):
        shorter = _OPENING.sub("", piece)
        if several:
            shorter = _FIRST.sub("", shorter)
        if shorter == piece:
            break
        piece = shorter
    return piece.rstrip(" ,;\n")


def _split_after(piece: str) -> list[str]:
    """Split "After taking stock, write a report" into two parts, in this order."""
    match = _AFTER_DOING.match(piece)
    return [match.group(1).strip(), match.group(2).strip()] if match else [piece]
