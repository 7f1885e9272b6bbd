"""Fold, split, stem and weight words. Pure, the same in every process.

Words of scripts without spaces become pairs of characters. Stems are only for comparison, not for display.

Function words are English grammar ("the", "would"); filler words are courtesy, time and vague verbs ("please", "today",
"get"). They get a low weight instead of being removed, because phrases need them. Other languages need no list: there,
frequency in the catalog has the same effect.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

FUNCTION_WEIGHT = 0.2
FILLER_WEIGHT = 0.5
NUMBER_WEIGHT = 0.5

# With the signs of `c++` and `c#`. In `a#b` the sign separates two words.
_WORD = re.compile(r"[^\W_]+(?:\+\+|#(?!\w))?")
_PLAIN_WORD = re.compile(r"[a-z0-9]+(?:\+\+|#(?!\w))?")
_MARKS, _BREAKS = ".,;:!?|'‘’", '"“”()\n。、，！？；：「」（）'
# One character class first, so that the search is fast. Marks end a segment before a space, breaks anywhere.
_SEGMENT_END = re.compile(rf"[{_MARKS}{_BREAKS}](?:(?<=[{_BREAKS}])|(?<=[{_MARKS}])[{_MARKS}]*+(?:\s|$))")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_INNER_CAPITAL = re.compile(r"[A-Z](?<=\w.)")
_ACCENTS = re.compile("[\u0300-\u036f]+")
# Thai, Lao, Burmese, Khmer, kana, Chinese characters and Hangul. Korean has spaces, but attaches particles to words.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003134f]+"
)
_VOWEL = re.compile("[aeiouy]")

_SPACED = bytes(code if code > 127 or chr(code).isalnum() or chr(code) in "+#_" else ord(" ") for code in range(256))
"""Translation table that replaces ASCII punctuation in UTF-8 with spaces, except for signs that words depend on."""

_SUFFIXES = ("ings", "ing", "edly", "ed", "ly", "ments", "ment")
_ENDINGS = frozenset(suffix[-2:] for suffix in _SUFFIXES)
_DOUBLING = frozenset({"ing", "ed"})


def split_words(text: str) -> list[str]:
    """Split a text into lowercase words without accents; `parseJson` gives parse, json and parsejson."""
    if not text.isascii():
        text = _fold(text)
    if text.isascii() and not _INNER_CAPITAL.search(text):
        return _PLAIN_WORD.findall(text.lower())
    is_plain = text.isascii()
    words: list[str] = []
    for word in _WORD.findall(text):
        if is_plain and word.islower():
            words.append(word)
        else:
            words += _split_word(word)
    return words


def split_tokens(text: str) -> list[str]:
    """Split a text at white space and ASCII punctuation. `split_words` of a token gives its words.

    A caller can cache the words of each token for a whole catalog.
    """
    # On bytes, because that takes a third of the time of a regular expression.
    return text.encode("utf-8", "surrogatepass").translate(_SPACED).decode("utf-8", "surrogatepass").split()


def split_into_segments(text: str) -> list[str]:
    """Split a text at punctuation marks, because phrases don't cross them."""
    return _SEGMENT_END.split(text)


def split_segments(text: str) -> Iterator[list[str]]:
    """Yield the words of each segment."""
    for segment in split_into_segments(text):
        words = split_words(segment)
        if words:
            yield words


def stem(word: str) -> str:
    """Remove plural, -ing, -ed, -ly and -ment."""
    # Not a Porter stemmer: stronger stemming was measured and finds fewer skills.
    if len(word) < 4 or not word.isascii():
        return word
    # `class` and `status` are no plurals.
    if word[-1] == "s" and word[-2] not in "su":
        word = _singular(word)
    if word[-2:] in _ENDINGS:
        word = _without_suffix(word)
    if len(word) > 3 and word[-1] == "e":
        word = word[:-1]
    if len(word) > 3 and word[-1] == "y":
        word = word[:-1] + "i"
    return word


def weight_of(word: str) -> float:
    """Return the weight of a word before rarity: low for function words, half for filler words and numbers."""
    if word in FUNCTION_WORDS:
        return FUNCTION_WEIGHT
    if word in FILLER_WORDS:
        return FILLER_WEIGHT
    return NUMBER_WEIGHT if word.isdigit() else 1.0


def _split_word(word: str) -> list[str]:
    if not word.isascii():
        return list(_pieces(word.casefold()))
    humps = [] if word.islower() or word.isupper() or word.isdigit() else _HUMP.split(word)
    return [*(hump.lower() for hump in humps if len(humps) > 1), word.lower()]


def _fold(text: str) -> str:
    """Unify compatibility forms and remove Latin, Greek and Cyrillic accents, but not those of Hangul and kana."""
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))


def _pieces(word: str) -> Iterator[str]:
    start = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > start:
            yield word[start : run.start()]
        characters = run.group()
        if len(characters) == 1:
            yield characters
        for first, second in pairwise(characters):
            yield first + second
        start = run.end()
    if start < len(word):
        yield word[start:]


def _singular(word: str) -> str:
    if word.endswith("ies"):
        # `queries` comes from `query`, but `ties` from `tie`.
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    return word[:-1]


def _without_suffix(word: str) -> str:
    for suffix in _SUFFIXES:
        root = word[: -len(suffix)]
        if word.endswith(suffix) and len(root) >= 3 and _VOWEL.search(root):
            # `planned` comes from `plan`, but `called`, `passed` and `buzzed` keep both letters.
            doubled = suffix in _DOUBLING and len(root) > 3 and root[-1] == root[-2] and root[-1] not in "lsz"
            return root[:-1] if doubled else root
    return word


FUNCTION_WORDS = frozenset(
    """
a about above after again against all also am an and any anybody anyone anything are as at be because been before
being below between both but by can cannot could did do does doing done down during each either else etc ever every
everybody everyone everything few for from further had has have having he hence her here hers herself him himself his
how however i if in into is it its itself just let lets may me might mine more most much must my myself neither no
nobody none nor not nothing now of off on once one only onto or other others ought our ours ourselves out over own per
perhaps please rather same shall she should since so some somebody someone something somewhere still such than that the
their theirs them themselves then there therefore these they this those though through thus to together too toward
towards under until up upon us very via was we were what whatever when whenever where wherever whether which while who
whoever whom whose why will with within without would yes yet you your yours yourself yourselves
ve re ll don doesn didn isn aren wasn weren won wouldn couldn shouldn hasn haven hadn t s d m im ive id dont cant wont
thats whats
""".split()  # noqa: SIM905 - a list of 300 strings is harder to read
)

FILLER_WORDS = frozenset(
    """
able accordingly actual actually additional additionally afterwards ago ahead almost along already although always
amount another anyway apart apparently appreciate around ask asked asking asks assist assistance available away back
bad basically become becomes best better big bit brief briefly bring bunch call called came care carefully certain
certainly cheers clear clearly come comes coming consider considering couple course curious currently day days dear
definitely despite different difficult directly easily easy enough entire entirely especially exact exactly example
fact far feel feeling felt final finally fine first five following former four fully gave general get gets getting
give given gives giving glad go goes going gone gonna good got gotta great guess guys half happen happened happening
happens happy hard hardly hello help helped helpful helping helps hey hi hope hopefully idea ideally immediately
important include included includes including indeed instead interested interesting involving issue keep keeps kept
kind kinda knew know known knows largely last lately later least left less like liked likely likes little long look
looked looking looks lot lots love lovely made main mainly make makes making many matter maybe mean means meanwhile
mention mentioned mere merely mind moreover mostly name namely near nearly necessary need needed needs never
nevertheless new next nice non normally noted obtain obviously often oh ok okay old otherwise overall particular
particularly part past people place possible possibly prefer preferably presumably pretty previous previously probably
problem properly proper provide provided provides providing purpose put quick quickly quite ready real really
reasonable reasonably recent recently regarding regardless regards related relatively relevant respectively right said
saw say saying says second secondly see seeing seem seemed seems seen seriously serious several show similar similarly
simple simply situation small somehow somewhat soon sorry sort specific specifically specify specified start started
stuff sub suggest suggestion suppose supposed sure take taken takes taking talk tell telling tends thank thanks thing
things think thinking third thorough thoroughly thought three throughout time times today told tomorrow tonight took
totally tried tries true truly try trying turn turns twice two type typical typically unless unlikely use used useful
user users uses using usual usually various version wait want wanted wants watch way ways week weeks well went whole
wish wonder wondering word words work worked working works worth wrong year years yesterday skill skills
""".split()  # noqa: SIM905 - a list of 300 strings is harder to read
)
