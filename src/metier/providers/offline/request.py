"""The parts of a request, in the order in which they must be done, and its keywords. Pure.

There are two kinds of separators. A *strong* one ("then", ";", a numbered list) always splits. At a *weak* one ("and
write …", ", find …", a new sentence) the planner, which knows the skills, decides. Nothing is split inside quotes, code
or brackets.
"""

import re
from bisect import bisect_right
from typing import NamedTuple

from msgspec import Struct, field

MAX_KEYWORDS = 12
MAX_KEYWORD_CHARACTERS = 60

_STOP_TEXT = """
a about above after afterwards again all also always am an and another any anything are as at away back be because
been before being below between both but by can cannot could did do does doing done down during each either else
ever every everything few finally first for from further had has have having he her here his how however i if in
into is it its just kindly last later let like lot made make may me might more most much must my near need needs
new next no none nor not nothing now of off often on once one only onto or other others our out over own per perhaps
please quick quickly rather same second shall she should since so some someone something soon still such sure than
thank thanks that the their them then there these they thing things third this those though through thus to today
together too under until up upon us use using very via want wanted was way we well were what whatever when where
whether which while who whom whose why will with within without would yes yet you your
aber alle alles als am an auch auf aus bei bis bitte da dann das dass dein dem den der des die diese diesem diesen
dieser dieses doch du ein eine einem einen einer eines er es für gibt hat hier ich ihr im in ist jede jeden jeder
jedes kann können man mein mich mir mit nach nicht noch nun nur ob oder ohne schon sein sich sie sind so soll und uns
unter vom von vor war was welche wenn werden wie wird wir wo zu zuerst zum zunächst zur über
ai au aux avec ce ces cette chaque dans de des du elle elles en est et il ils je la le les leur ma mais me mes moi mon
ne nos notre nous ou où par pas pour quel quelle qui quoi sa se ses si son sont sur ta te tes toi ton tous tout toute
toutes très tu un une vos votre vous
al como con cual cuando del donde dónde el ella ellos en entre era es esta estas este esto estos está favor hay
la las lo los más mi mis muy no nos nuestro o para pero por porque primero que qué se sin sobre son su sus también
te tiene toda todas todos un una unas uno unos y ya
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())

_ASKING_TEXT = """
appear appears collect count directory display extract file files find folder folders get give grep identify instance
instances keyword keywords list locate look mention mentioned mentions occur occurrence occurrences occurs passage
passages phrase phrases place places project repo repository report search see show skill snippet snippets tell text
word words workspace
datei dateien finde liste ordner projekt suche wort wörter zeige
cherche dossier fichier fichiers liste montre trouve
archivo archivos busca carpeta encuentra lista muestra
"""
ASKING_WORDS = frozenset(_ASKING_TEXT.split())
"""Words that ask for a search and are not search terms themselves."""

_VERB_TEXT = """
add analyse analyze build check collect compare compile convert count create describe draft export extract fetch find
gather generate get give greet identify inventory list look make prepare print produce read review run save say scan
search send show summarise summarize take tell translate use write
erstelle fasse finde liste mache sammle schreibe suche zeige zähle
cherche crée fais liste montre rédige résume trouve écris
busca crea encuentra escribe haz lista muestra redacta resume
"""
VERBS = tuple(sorted(frozenset(_VERB_TEXT.split())))
"""Verbs that start an instruction. After "and", a comma or a period they may start another part."""

_WORD = re.compile(r"[^\W_](?:[\w./+#'’-]*[\w+#])?")
_QUOTED = re.compile(
    r'"([^"\n]{2,200})"|“([^“”\n]{2,200})[“”]|„([^„“”\n]{2,200})[“”]|«([^«»\n]{2,200})»|`([^`\n]{2,200})`'
    r"|(?<!\w)'([^'\n]{2,200})'(?!\w)|‘([^‘’\n]{2,200})’(?!\w)|「([^「」\n]{1,200})」"
)


def split_words(text: str) -> list[str]:
    """Split into words as they are written. Paths, versions and hyphenated names are one word."""
    return _WORD.findall(text)


def list_content_words(text: str) -> list[str]:
    """List the words that are not stop words, each once, in order."""
    words = (word for word in split_words(text) if word.casefold() not in STOP_WORDS)
    return list({word.casefold(): word for word in reversed(list(words))}.values())[::-1]


def list_keywords(text: str, *, without: frozenset[str] = frozenset()) -> list[str]:
    """List the search terms of a request: its quoted phrases or, if it has none, its content words.

    `without` has words to skip, in lower case, such as the name of the skill.
    """
    quoted = [next(group for group in match.groups() if group) for match in _QUOTED.finditer(text)]
    phrases = [" ".join(phrase.replace(",", " ").split()) for phrase in quoted]
    found = [phrase for phrase in phrases if phrase and phrase.casefold() not in without]
    if not found:
        skipped = ASKING_WORDS | without
        found = [word for word in list_content_words(text) if word.casefold() not in skipped]
    unique = {word.casefold(): word[:MAX_KEYWORD_CHARACTERS].strip() for word in reversed(found)}
    return list(unique.values())[::-1][:MAX_KEYWORDS]


def list_matched(text: str, described: str) -> list[str]:
    """List the words of the request that also occur in a skill's name or description, ignoring endings."""
    known = {_root(word) for word in split_words(described.replace("-", " "))}
    return [word for word in list_content_words(text) if _root(word) in known]


def _root(word: str) -> str:
    folded = word.casefold()
    return folded[: max(4, len(folded) - 3)]


READ_CHARACTERS = 20_000
"""Maximum length that is read; the result mentions the rest."""

type Span = tuple[int, int]

_AND = r"(?:and|und|et|y)"
_ENDED = rf"(?:[,;.!?]\s+(?:{_AND}\s+)?|\s+{_AND}\s+)"
_MAYBE_ENDED = rf"(?:[,;.!?])?\s+(?:{_AND}\s+)?"

# All repetitions are bounded, so that a quote that is never closed doesn't make the search quadratic.
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
"""In German the verb precedes the separator: "und schreibe danach …"."""
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


class Separator(NamedTuple):
    start: int
    end: int
    swaps: bool = False
    """True if the part after the separator must be done before the part in front of it."""


class RequestText(Struct, frozen=True):
    """A normalized request of limited length, with the spans in which nothing is split."""

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
    """Split at strong separators, in the order in which the parts must be done."""
    pieces = [part for item in _split_items(request) for part in _split_at_strong(_protect(item))]
    several = len(pieces) > 1
    stripped = [_strip_opening(piece, several=several) for piece in pieces]
    ordered = [part for piece in stripped for part in _split_after(piece)]
    return [part for part in ordered if list_content_words(part)]


def split_at_weak(part: str) -> list[Span]:
    """Return the spans between weak separators. A single word is no span of its own: "find and list" is one action."""
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
    # "Please do the following:" introduces the list; it is not a task of its own.
    return items if not before or before.endswith((":", "：")) else [before, *items]


def _list_inline_items(request: RequestText) -> list[Span]:
    """List the items of `1) … 2) …` on one line, as long as the numbers are consecutive."""
    found: list[Span] = []
    for match in _INLINE_ITEM.finditer(request.text):
        if int(match.group(1)) == len(found) + 1 and request.can_split(match.start()):
            found.append(match.span())
    return found


def _split_at_strong(request: RequestText) -> list[str]:
    pieces: list[str] = []
    start, swaps = 0, False
    for separator in [*_list_separators(request), Separator(len(request.text), len(request.text))]:
        piece = request.text[start : separator.start].strip()
        if piece:
            pieces.insert(len(pieces) - (1 if swaps and pieces else 0), piece)
        start, swaps = separator.end, separator.swaps
    return pieces


def _list_separators(request: RequestText) -> list[Separator]:
    """List the strong separators in order, without overlaps."""
    found = [Separator(*match.span(), swaps=True) for match in _BUT_FIRST.finditer(request.text)]
    for pattern in (_VERB_FIRST, _LATER, _PLAIN):
        found += [Separator(*match.span()) for match in pattern.finditer(request.text)]
    found += [Separator(*match.span()) for match in _THEN.finditer(request.text) if _follows(request, match)]
    separators: list[Separator] = []
    for separator in sorted(found, key=lambda each: (each.start, -each.end)):
        if request.can_split(separator.start) and (not separators or separator.start >= separators[-1].end):
            separators.append(separator)
    return separators


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
