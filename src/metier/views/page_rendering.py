"""The Jinja environment of all pages, and a run as one HTML file.

Text is escaped by default. Only the filters `markdown` and `ticks` return markup.
"""

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, Template
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from msgspec import Struct
from pydantic import JsonValue

from metier.telemetry.amounts import format_cost, format_count, format_seconds, format_tokens
from metier.telemetry.call_text import has_same_metacharacters
from metier.telemetry.excerpt import cut_middle, one_line
from metier.telemetry.sanitize import reveal, sanitize
from metier.version import __version__
from metier.views.closing import get_seconds
from metier.views.diff import build_step_diff, parse_diff
from metier.views.run_view import RunView
from metier.views.waterfall import build_waterfall

FOLDER = Path(__file__).parent / "page"
STYLE_FILE = FOLDER / "style.css"
_MAX_LINES = 400
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))

_STATUS_WORDS = {"input_required": "needs an answer", "in_progress": "running", "delegating": "waits for a child run"}
_STATUS_KINDS = {
    "completed": "ok",
    "in_progress": "live",
    "delegating": "live",
    "pending": "",
    "queued": "",
    "canceled": "",
    "paused": "warn",
    "input_required": "warn",
    "interrupted": "warn",
    "worker_lost": "bad",
    "blocked": "warn",
    "escalated": "warn",
}
_STEP_KINDS = {"succeeded": "ok", "running": "live", "waiting": "warn", "skipped": "", "in_doubt": "warn"}


def build_environment(folders: Sequence[Path] = (), *, clean: Callable[[str], str] = str) -> Environment:
    """Build the environment. Templates in `folders` take precedence; `clean` removes secrets from outside text."""
    loaders = [FileSystemLoader(folder) for folder in (*folders, FOLDER / "templates")]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelled name in a template is an error and not an empty text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = _OutsideTexts(clean)
    filters = cast("dict[str, Callable[..., object]]", environment.filters)  # of the types of those that Jinja brings
    filters |= {
        "cost": format_cost,
        "tokens": format_tokens,
        "seconds": format_seconds,
        "duration": format_duration,
        "interval": format_interval,
        "moment": format_moment,
        "minute": format_minute,
        "ticks": mark_code,
        "pretty": texts.render_json,
        "safe_text": texts.sanitize,
        "line": texts.cut_line,
        "cut": cut_long,
        "markdown": texts.render_markdown,
        "status": _name_status,
        "status_kind": _get_status_kind,
        "step_kind": _get_step_kind,
        "diff_lines": texts.list_diff_lines,
        "step_diff": build_step_diff,
        "count": format_count,
        "took": get_seconds,
    }
    return environment


def format_duration(seconds: float) -> str:
    """Format a duration, in milliseconds below a second."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else format_seconds(seconds)


def format_interval(seconds: float) -> str:
    """Format an interval in the largest unit that divides it: `6 h`, `90 s`."""
    name, size = next((unit for unit in _UNITS if seconds % unit[1] == 0), _UNITS[-1])
    return f"{seconds / size:g} {name}"


def cut_long(text: str, most: int = 2_000) -> str:
    """Truncate the middle of a long text."""
    return cut_middle(text, most)


def format_moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def format_minute(moment: datetime) -> str:
    """Format a time for a table row."""
    return f"{moment:%Y-%m-%d %H:%M}"


def mark_code(text: str) -> Markup:
    """Render text between backticks as code. Everything is escaped."""
    pieces = str(escape(text)).split("`")
    marked = [f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces)]
    return Markup("".join(marked))  # noqa: S704 - escaped above


class _OutsideTexts(Struct, frozen=True):
    """Filters for outside text: they remove secrets, reveal hidden characters and limit the length."""

    clean: Callable[[str], str]

    def render_json(self, value: JsonValue) -> str:
        """Render a value as readable JSON, or a text unchanged. Shell characters are never hidden by redaction."""
        text = reveal(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
        masked = self.clean(text)
        return masked if has_same_metacharacters(masked, text) else text

    def sanitize(self, text: str) -> str:
        """Sanitize, then redact: color codes inside a secret would hide it from the redactor."""
        return self.clean(sanitize(text))

    def cut_line(self, text: str, most: int = 90) -> str:
        return one_line(self.sanitize(text), most)

    def render_markdown(self, text: str) -> Markup:
        return Markup(render_markdown_html(self.sanitize(text)))  # noqa: S704 - by an allowlist

    def list_diff_lines(self, unified: str) -> list[tuple[str, str, str]]:
        """Return kind, number and text of each line, up to a limit, and the number of further lines."""
        lines = list(parse_diff(self.clean(reveal(unified))))
        shown = [(line.kind, str(line.number or ""), line.text) for line in lines[:_MAX_LINES]]
        left = len(lines) - len(shown)
        return [*shown, ("note", "", f"… {left:,} more lines")] if left else shown


def _name_status(status: str) -> str:
    return _STATUS_WORDS.get(status, status.replace("_", " ") or "not started")


def _get_status_kind(status: str) -> str:
    return _STATUS_KINDS.get(status, "bad")


def _get_step_kind(state: str) -> str:
    return _STEP_KINDS.get(state, "bad")


@cache
def _open_template() -> Template:
    return build_environment().get_template("share.html")


def render_share(view: RunView, changes: Mapping[str, str] | None = None) -> str:
    """Render a run as one HTML file without scripts or links to other files. `changes` are diffs by `run:step`.

    The content security policy of the page blocks scripts and requests.
    """
    style = STYLE_FILE.read_text(encoding="utf-8")
    # The content security policy allows this style sheet by its hash, and no other inline style.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _open_template().render(
        view=view,
        fall=build_waterfall(view),
        changes=dict(changes or {}),
        style=Markup(style),  # noqa: S704 - our own file
        style_hash=f"sha256-{digest}",
        version=__version__,
    )


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
    """Render Markdown as HTML that is safe to insert into a page: allowed elements only, with all text escaped.

    HTML in the text is shown as text. A link is followed by its host, so that its text can't pretend another target;
    only http, https and mailto are linked. Images are not loaded, because a request would leak to their host that the
    text was read, and any data that the model put into the address. Their address is shown instead.
    """
    clean = sanitize(text)
    if len(clean) > MAX_CHARACTERS:
        return f"<pre>{html.escape(clean)}</pre>"
    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
    try:
        return "".join(_render(parser.parse(clean)))
    except _BROKEN:  # of the library, by text that is no Markdown
        return f"<pre>{html.escape(clean)}</pre>"


def _render(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        if token.hidden:
            continue
        match token.type:
            case "inline":
                yield from _render_inline(token.children or [])
            case "fence" | "code_block":
                yield f"<pre><code>{html.escape(token.content)}</code></pre>\n"
            case "hr":
                yield "<hr>\n"
            case _ if token.nesting and token.tag in ELEMENTS:
                yield f"<{token.tag}>" if token.nesting > 0 else f"</{token.tag}>\n"
            case _:
                yield html.escape(token.content)


def _render_inline(tokens: list[Token]) -> Iterator[str]:
    open_links: list[str] = []
    for token in tokens:
        match token.type:
            case "text" | "html_inline":
                yield html.escape(token.content)
            case "softbreak":
                yield "\n"
            case "hardbreak":
                yield "<br>\n"
            case "code_inline":
                yield f"<code>{html.escape(token.content)}</code>"
            case "image":
                address = str(token.attrs.get("src", ""))
                yield f'<span class="image">[image {html.escape(token.content)}: {html.escape(address)}]</span>'
            case "link_open":
                opened, closing = _open_link(str(token.attrs.get("href", "")))
                open_links.append(closing)
                yield opened
            case "link_close":
                yield open_links.pop() if open_links else ""
            case _ if token.nesting and token.tag in ELEMENTS:
                yield f"<{token.tag}>" if token.nesting > 0 else f"</{token.tag}>"
            case _:
                yield html.escape(token.content)


def _open_link(address: str) -> tuple[str, str]:
    """Return the opening and closing markup of a link. An address that can't be linked is shown after its text."""
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("")
    place = parts.path if parts.scheme == "mailto" else parts.hostname
    # `javascript:` and `data:` would run in the origin of the console.
    if parts.scheme not in _SCHEMES or not place:
        return "", f' <span class="host">[{html.escape(address)}]</span>'
    # The linked page must neither learn the address of this one nor control its window.
    opened = f'<a href="{html.escape(address)}" rel="noreferrer noopener nofollow" target="_blank">'
    return opened, f'</a> <span class="host">[{html.escape(place)}]</span>'
