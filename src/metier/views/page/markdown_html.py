"""A model's Markdown as HTML. Only the allowed elements below are written, and all text is escaped.

HTML in the text is shown as text. A link is followed by its host, so that its text can't pretend another target; only
http, https and mailto are linked. Images are not loaded, because a request would leak to their host that the text was
read, and any data that the model put into the address. Their address is shown instead.
"""

from collections.abc import Iterable, Iterator
from html import escape
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from metier.telemetry.sanitize import sanitize

MAX_CHARACTERS = 200_000
"""Longer text is shown unformatted, because parsing it would delay the page."""
ELEMENTS = frozenset(
    {
        "blockquote", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "strong",
        "table", "tbody", "td", "th", "thead", "tr", "ul",
    }
)  # fmt: skip
_SCHEMES = ("http", "https", "mailto")
_BROKEN = (RecursionError, AssertionError, IndexError, KeyError, ValueError, TypeError, AttributeError)


def render_markdown_html(text: str) -> str:
    """Render HTML that is safe to insert into a page."""
    clean = sanitize(text)
    if len(clean) > MAX_CHARACTERS:
        return f"<pre>{escape(clean)}</pre>"
    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
    try:
        return "".join(_render(parser.parse(clean)))
    except _BROKEN:  # of the library, by text that is no Markdown
        return f"<pre>{escape(clean)}</pre>"


def _render(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        if token.hidden:
            continue
        match token.type:
            case "inline":
                yield from _render_inline(token.children or [])
            case "fence" | "code_block":
                yield f"<pre><code>{escape(token.content)}</code></pre>\n"
            case "hr":
                yield "<hr>\n"
            case _ if token.nesting and token.tag in ELEMENTS:
                yield f"<{token.tag}>" if token.nesting > 0 else f"</{token.tag}>\n"
            case _:
                yield escape(token.content)


def _render_inline(tokens: list[Token]) -> Iterator[str]:
    open_links: list[str] = []
    for token in tokens:
        match token.type:
            case "text" | "html_inline":
                yield escape(token.content)
            case "softbreak":
                yield "\n"
            case "hardbreak":
                yield "<br>\n"
            case "code_inline":
                yield f"<code>{escape(token.content)}</code>"
            case "image":
                address = str(token.attrs.get("src", ""))
                yield f'<span class="image">[image {escape(token.content)}: {escape(address)}]</span>'
            case "link_open":
                opened, closing = _open_link(str(token.attrs.get("href", "")))
                open_links.append(closing)
                yield opened
            case "link_close":
                yield open_links.pop() if open_links else ""
            case _ if token.nesting and token.tag in ELEMENTS:
                yield f"<{token.tag}>" if token.nesting > 0 else f"</{token.tag}>"
            case _:
                yield escape(token.content)


def _open_link(address: str) -> tuple[str, str]:
    """Return the opening and closing markup of a link. An address that can't be linked is shown after its text."""
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("")
    place = parts.path if parts.scheme == "mailto" else parts.hostname
    if parts.scheme not in _SCHEMES or not place:
        return "", f' <span class="host">[{escape(address)}]</span>'
    opened = f'<a href="{escape(address)}" rel="noreferrer noopener nofollow" target="_blank">'
    return opened, f'</a> <span class="host">[{escape(place)}]</span>'
