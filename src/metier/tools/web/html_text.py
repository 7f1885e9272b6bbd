"""The readable text of a web page: title, headings, paragraphs, lists, links, code. No layout, no scripts. Pure.

Reads every character a fixed number of times. The parser of the standard library needs minutes for some pages of this
size, and a page is written by a stranger.
"""

import re
from collections.abc import Iterator
from html import unescape

from msgspec import Struct

from metier.errors import ToolFailed
from metier.tools.web.url import WebUrl, join_url

_RAW = frozenset({"script", "style", "title", "textarea", "xmp", "noframes"})
"""Elements whose content is not markup."""
_DROPPED = frozenset({"noscript", "template", "svg", "iframe", "object", "canvas", "select", "math", "audio", "video"})
_BLOCKS = frozenset(
    {
        "p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "ul", "ol", "table", "tr",
        "blockquote", "form", "figure", "figcaption", "dl", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "hr",
        "body", "fieldset", "details", "summary", "address",
    }
)  # fmt: skip
_BEFORE = {"li": "\n- ", "td": " | ", "th": " | ", "br": "\n"} | {f"h{n}": f"\n\n{'#' * n} " for n in range(1, 7)}
_MARKUP = re.compile(r"<(?=[a-zA-Z!?/])")
"""Any other `<` is text; a page may have a million of them in a row."""
_TAG_NAME = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]{0,30})")
_VALUE = r"\s{0,9}=\s{0,9}(?:\"([^\"]{0,4000})\"|'([^']{0,4000})'|([^\s\"'>]{1,4000}))"
_HREF = re.compile(rf"[\s\"'/]href{_VALUE}", re.IGNORECASE)
_ALT = re.compile(rf"[\s\"'/]alt{_VALUE}", re.IGNORECASE)
_BLANKS = re.compile(r"[ \t\r\n\f\u00a0]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
_MAX_QUOTED_ENDS = 4
MAX_LINKS = 500
"""Further links keep their text only."""


class _Piece(Struct, frozen=True):
    text: str
    name: str = ""
    """Of the element, empty for text."""
    is_end: bool = False


def extract_text(html: str, base: WebUrl) -> str:
    """Links are written `[text](address)`, with addresses made whole; those that may not be fetched keep their text."""
    reader = _Reader(base)
    for piece in _split(html):
        reader.add(piece)
    return reader.render()


def _split(html: str) -> Iterator[_Piece]:
    """Tags and the text between them. What is opened and never closed ends the page."""
    place = 0
    while (opened := _MARKUP.search(html, place)) is not None:
        start = opened.start()
        yield _Piece(html[place:start])
        found = _TAG_NAME.match(html, start)
        end = _get_end(html, start)
        if end < 0:
            return
        place = end
        if found is None:
            continue
        name, is_end = found.group(1).lower(), html[start + 1] == "/"
        yield _Piece(html[start:end], name, is_end)
        if name in _RAW and not is_end:
            stop = _get_close(html, name, end)
            yield _Piece(html[end:stop] if name == "title" else "")
            place = stop
    yield _Piece(html[place:])


def _get_end(html: str, start: int) -> int:
    """Behind the `>` of a tag or comment; one within quotes is passed over, but not for ever. -1: there is none."""
    if html.startswith("<!--", start):
        end = html.find("-->", start + 2)
        return end + 3 if end >= 0 else -1
    first = end = html.find(">", start)
    for _ in range(_MAX_QUOTED_ENDS):
        if end < 0:
            break
        tag = html[start:end]
        if tag.count('"') % 2 == 0 or "=" not in tag:
            return end + 1
        end = html.find(">", end + 1)
    return first + 1 if first >= 0 else -1


def _get_close(html: str, name: str, start: int) -> int:
    found = re.compile(f"</{name}", re.IGNORECASE).search(html, start)
    return found.start() if found else len(html)


class _Reader:
    def __init__(self, base: WebUrl) -> None:
        self._base = base
        self._pieces: list[str] = []
        self._title = ""
        self._in_title = False
        self._dropped = ""
        """The element whose content is passed over, until its own end."""
        self._depth = 0
        self._in_code = False
        self._links = 0
        self._link: tuple[str, int] | None = None
        """The open link: where it leads, and where its text begins among the pieces."""

    def add(self, piece: _Piece) -> None:
        if not piece.name:
            self._add_text(piece.text)
            return
        self._in_title = piece.name == "title" and not piece.is_end
        if self._dropped:
            if piece.name == self._dropped:
                self._depth += -1 if piece.is_end else 1
            self._dropped = self._dropped if self._depth else ""
        elif piece.is_end:
            self._close(piece.name)
        elif piece.name in _DROPPED and not piece.text.endswith("/>"):
            self._dropped, self._depth = piece.name, 1
        else:
            self._open(piece)

    def _add_text(self, text: str) -> None:
        plain = _unescape(text)
        if self._in_title:
            self._title = self._title or _BLANKS.sub(" ", plain).strip()
        elif not self._dropped:
            self._pieces.append(plain if self._in_code else _BLANKS.sub(" ", plain))

    def _open(self, piece: _Piece) -> None:
        name = piece.name
        if name == "pre" and not self._in_code:
            self._in_code = True
            self._pieces.append("\n\n```\n")
        elif name == "code" and not self._in_code:
            self._pieces.append("`")
        elif name == "a":
            self._close_link()  # a link cannot hold another
            if target := _find_value(_HREF, piece.text):
                self._link = (target, len(self._pieces))
        elif name == "img":
            self._pieces.append(_BLANKS.sub(" ", _find_value(_ALT, piece.text)))
        elif name in _BEFORE:
            self._pieces.append(_BEFORE[name])
        elif name in _BLOCKS:
            self._pieces.append("\n\n")

    def _close(self, name: str) -> None:
        if name == "pre" and self._in_code:
            self._in_code = False
            self._pieces.append("\n```\n\n")
        elif name == "code" and not self._in_code:
            self._pieces.append("`")
        elif name == "a":
            self._close_link()
        elif name in _BLOCKS:
            self._pieces.append("\n\n")

    def _close_link(self) -> None:
        if self._link is None:
            return
        (target, start), self._link = self._link, None
        self._links += 1
        if self._links > MAX_LINKS:
            return
        words = _BLANKS.sub(" ", "".join(self._pieces[start:])).strip()
        if not words:
            return
        try:
            self._pieces[start:] = [f"[{words}]({join_url(self._base, target.strip()).text})"]
        except ToolFailed:
            return

    def render(self) -> str:
        lines: list[str] = []
        is_code = False
        for line in "".join(self._pieces).split("\n"):
            if line.strip() == "```":
                is_code = not is_code
            lines.append(line.rstrip() if is_code else line.strip())
        body = _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()
        return f"Title: {self._title}\n\n{body}".strip() if self._title else body


def _find_value(attribute: re.Pattern[str], tag: str) -> str:
    found = attribute.search(tag)
    return _unescape(next((value for value in found.groups() if value is not None), "")) if found else ""


def _unescape(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a number with more digits than any character has
        return text
