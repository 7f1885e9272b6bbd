"""A model's Markdown rendered for the terminal: headings, lists, tables, code, links with their address.

The text can't hide anything or move the cursor: HTML is shown as text, and a link's address is shown next to its text
instead of in a terminal hyperlink. Text that would be slow to lay out is printed unchanged.
"""

from collections.abc import Iterator
from copy import copy
from functools import cache
from typing import ClassVar, override

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement, TableElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from metier.telemetry.sanitize import sanitize
from metier.views.blocks import split_blocks

MAX_LINE = 10_000
"""Maximum characters of a line on the terminal."""
MAX_RENDERED = 12_000
"""Maximum characters of a block that is laid out. Longer ones are printed unchanged."""
MAX_CODE = 8_000
MAX_TEXT = 1_000_000
# Other themes have fixed colors, which are unreadable on some backgrounds.
_CODE_COLORS = "ansi_dark"
_THEME = Theme(
    {
        # Only colors of the terminal's palette and no backgrounds, so that text is readable on dark and light screens.
        "markdown.code": "cyan",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold italic",
        "markdown.h4": "italic",
        "markdown.block_quote": "italic",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)
_BROKEN = (RuntimeError, AssertionError, IndexError, KeyError, ValueError, TypeError, AttributeError)


def render_markdown(text: str) -> RenderableType:
    """Render a whole text, block by block."""
    return Group(*_separate([render_block(block) for block in split_blocks(text[:MAX_TEXT])]))


def render_block(block: str) -> RenderableType:
    """Render one block, as split by `blocks`."""
    clean = _shorten(sanitize(block))
    if len(clean) > MAX_RENDERED:
        return Text(clean)
    return _Guarded(clean)


def _separate(rendered: list[RenderableType]) -> Iterator[RenderableType]:
    for number, each in enumerate(rendered):
        if number:
            yield Text()
        yield each


def _shorten(text: str) -> str:
    if len(text) <= MAX_LINE:
        return text
    return "\n".join(
        line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}… {len(line) - MAX_LINE:,} more characters"
        for line in text.split("\n")
    )


class _Guarded:
    """Render a block without blank lines around it. Text that the library can't lay out is printed unchanged."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        try:
            with console.use_theme(_THEME):
                lines = console.render_lines(_build_empty().fill(self._text), options, pad=False)
        except _BROKEN:  # of the library, by text that is no Markdown
            yield Text(self._text)
            return
        for line in _strip_blank(lines):
            yield from line
            yield Segment.line()


def _strip_blank(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Remove the blank lines that the library puts around lists and tables; the caller separates blocks."""
    filled = [number for number, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
    return lines[filled[0] : filled[-1] + 1] if filled else []


class _Heading(Heading):
    """A heading, left-aligned at every level."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _ListItem(ListItem):
    """A list item: a dot or a number at the margin and a hanging indent."""

    @override
    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mark = Segment("• ", console.get_style("markdown.item.bullet"))
        return self._render(mark, console, options)

    @override
    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        text = f"{number}.".rjust(len(str(last_number - 1)) + 1) + " "
        return self._render(Segment(text, console.get_style("markdown.item.number")), console, options)

    def _render(self, mark: Segment, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - len(mark.text))
        lines = console.render_lines(self.elements, options.update(width=width), style=self.style, pad=False)
        for number, line in enumerate(lines):
            yield Segment(" " * len(mark.text)) if number else mark
            yield from line
            yield Segment.line()


class _Table(TableElement):
    """A table without borders, with a rule below the header."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, style="markdown.table.border"
        )
        header = self.header.row.cells if self.header is not None and self.header.row is not None else []
        for column in header:
            column.content.stylize("markdown.table.header")
            table.add_column(column.content, justify=column.content.justify or "left")
        for row in self.body.rows if self.body is not None else []:
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class _Code(CodeBlock):
    """A code block, highlighted if it is short. It is indented, so that it stands out without colors too."""

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip().expandtabs(4)
        if len(code) > MAX_CODE or max(map(len, code.split("\n"))) > 4 * options.max_width:
            yield Text(code)
            return
        plain = Syntax(code, self.lexer_name, theme=_CODE_COLORS, word_wrap=True, background_color="default")
        highlighted = plain.highlight(code)
        highlighted.rstrip()
        for line in highlighted.split("\n"):
            indented = Text("  ")
            indented.append_text(line)
            yield indented


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _ListItem,
        "table_open": _Table,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self) -> None:
        super().__init__("", hyperlinks=False, code_theme=_CODE_COLORS)

    def fill(self, text: str) -> "_Markdown":
        """Return an instance with this text. Creating its parser takes longer than parsing a block, so it is shared."""
        filled = copy(self)
        filled.parsed = list(_show_addresses(_build_parser().parse(text)))
        return filled


@cache
def _build_parser() -> MarkdownIt:
    # HTML stays text: the terminal would show nothing of it, and the user would not see what the model wrote.
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


@cache
def _build_empty() -> _Markdown:
    return _Markdown()


def _show_addresses(tokens: list[Token]) -> Iterator[Token]:
    """A link, which shows its address once if that is also its text. An image is rendered as a link."""
    for token in tokens:
        if token.children:
            token.children = list(_show_inline(token.children))
        yield token


def _show_inline(tokens: list[Token]) -> Iterator[Token]:
    at = 0
    while at < len(tokens):
        token = tokens[at]
        closing = next((i for i in range(at, len(tokens)) if tokens[i].type == "link_close"), None)
        if token.type == "image":
            yield Token("text", "", 0, content=f"[image {token.content}: {token.attrs.get('src', '')}]")
        elif token.type == "link_open" and closing is not None and _is_bare(tokens[at : closing + 1]):
            yield from tokens[at + 1 : closing]
            at = closing
        else:
            yield token
        at += 1


def _is_bare(link: list[Token]) -> bool:
    words = "".join(token.content for token in link[1:-1])
    return words == str(link[0].attrs.get("href", "")).removeprefix("mailto:")
