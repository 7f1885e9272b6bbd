"""The readable text of a web page: title, headings, paragraphs, lists, links, code. No layout, no scripts. Pure."""

import re
from html.parser import HTMLParser
from typing import override

from metier.errors import ToolFailed
from metier.tools.web_url import WebUrl, join_url

_DROPPED = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "select"})
_BLOCKS = frozenset(
    {
        "p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "ul", "ol", "table", "tr",
        "blockquote", "form", "figure", "figcaption", "dl", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "li", "pre",
        "hr", "body", "html", "fieldset", "details", "summary", "address",
    }
)  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_VOID = frozenset(
    {"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "embed", "source", "track", "wbr"}
)
_BLANKS = re.compile(r"[ \t\r\n\f\u00a0]+")
_EMPTY_LINES = re.compile(r"\n{3,}")


def extract_text(html: str, base: WebUrl) -> str:
    """Links are written `[text](address)`, with addresses made whole; those that may not be fetched keep their text."""
    reader = _Reader(base)
    reader.feed(html)
    reader.close()
    return reader.render()


class _Reader(HTMLParser):
    def __init__(self, base: WebUrl) -> None:
        super().__init__(convert_charrefs=True)
        self._base = base
        self._pieces: list[str] = []
        self._title: list[str] = []
        self._in_title = False
        self._dropped = ""
        """The element whose content is passed over, until its own end."""
        self._depth = 0
        self._code = 0
        self._link: tuple[str, int] | None = None
        """The open link: where it leads, and where its text begins among the pieces."""

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title" and not self._title
        if self._dropped:
            self._depth += tag == self._dropped
        elif tag == "body":
            self._pieces.append("\n")
        elif tag in _DROPPED:
            self._dropped, self._depth = tag, 1
        else:
            self._open(tag, dict(attrs))

    def _open(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag == "pre":
            self._code += 1
            self._pieces.append("\n\n```\n")
        elif tag == "br":
            self._pieces.append("\n")
        elif tag == "code" and not self._code:
            self._pieces.append("`")
        elif tag == "a" and (target := attributes.get("href")):
            self._close_link()  # a link cannot hold another
            self._link = (target, len(self._pieces))
        elif tag == "img" and (words := attributes.get("alt")):
            self._pieces.append(words)
        elif tag in _BLOCKS:
            self._pieces.append({"li": "\n- ", "td": " | ", "th": " | "}.get(tag, "\n\n"))
            if tag in _HEADINGS:
                self._pieces.append(f"{_HEADINGS[tag]} ")
        elif tag in {"td", "th"}:
            self._pieces.append(" | ")

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if self._dropped:
            self._depth -= tag == self._dropped
            if not self._depth:
                self._dropped = ""
        elif tag == "pre" and self._code:
            self._code -= 1
            self._pieces.append("\n```\n\n")
        elif tag == "code" and not self._code:
            self._pieces.append("`")
        elif tag == "a":
            self._close_link()
        elif tag in _BLOCKS and tag != "li":
            self._pieces.append("\n\n")

    def _close_link(self) -> None:
        if self._link is None:
            return
        (target, start), self._link = self._link, None
        words = _BLANKS.sub(" ", "".join(self._pieces[start:])).strip()
        if not words:
            return
        try:
            self._pieces[start:] = [f"[{words}]({join_url(self._base, target.strip()).text})"]
        except ToolFailed:
            return

    @override
    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._dropped:
            self._pieces.append(data if self._code else _BLANKS.sub(" ", data))

    def render(self) -> str:
        lines: list[str] = []
        is_code = False
        for line in "".join(self._pieces).split("\n"):
            if line.strip() == "```":
                is_code = not is_code
            lines.append(line.rstrip() if is_code else line.strip())
        body = _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()
        title = _BLANKS.sub(" ", "".join(self._title)).strip()
        return f"Title: {title}\n\n{body}".strip() if title else body
