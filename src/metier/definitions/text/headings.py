"""The heading tree of a Markdown body: titles and positions of sections."""

import io
import itertools
import re
from collections.abc import Iterable, Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import Struct

# Slugs are built like the anchors of GitHub, because links in skills are written for those.
_NOT_IN_SLUG = re.compile(r"[^\w\- ]")
_NOT_PROSE = ("![", "[!", "<")
"""Start of an image, a badge or an HTML tag."""
_PROSE = ("paragraph_open", "bullet_list_open", "ordered_list_open", "blockquote_open")


class _Markdown(MarkdownIt):
    def normalizeLink(self, url: str) -> str:  # noqa: N802 - the library's name
        """Return the address unchanged: it isn't rendered, and normalizing a lone surrogate would fail."""
        return url


_INLINE = _Markdown("commonmark").enable("strikethrough")
# Block rules only: bodies are long, and only the text of headings is needed.
_BLOCKS = _Markdown("commonmark").enable("table").disable("inline")


class Section(Struct, frozen=True, kw_only=True):
    """A heading with everything up to the next heading of the same or a higher level."""

    level: int
    text: str
    """Title without Markdown syntax."""
    slug: str
    """Slug that is unique in the body: the second `usage` is `usage-1`."""
    line: int
    end_line: int
    """Last line of the section, including nested ones."""
    start: int
    end: int
    """Character positions in the body."""
    start_byte: int
    end_byte: int
    """Byte positions in its UTF-8 form."""
    children: tuple["Section", ...] = ()


class _Heading(Struct, frozen=True):
    level: int
    text: str
    index: int
    """Line of the heading in the body, from 0."""


def parse_sections(body: str, *, first_line: int = 1) -> tuple[Section, ...]:
    """Return the top-level sections, which contain the nested ones."""
    return _TreeBuilder(_split_lines(body), list(_list_headings(body)), first_line).build()


def walk_sections(sections: tuple[Section, ...]) -> Iterator[Section]:
    """Iterate over all sections in the order of the text."""
    for section in sections:
        yield section
        yield from walk_sections(section.children)


def find_section(sections: tuple[Section, ...], name: str) -> Section | None:
    """Find the first section with this heading, ignoring case, else with this slug."""
    wanted = _plain_text(name).casefold()
    every = list(walk_sections(sections))
    for section in every:
        if section.text.casefold() == wanted:
            return section
    return next((section for section in every if section.slug == name.casefold().lstrip("#")), None)


def first_paragraph(body: str) -> str:
    """Return the first paragraph or list item that is no image or HTML, else the first heading."""
    lines = _split_lines(body)
    heading = ""
    for token, following in itertools.pairwise(_BLOCKS.parse(body)):
        if token.level == 0 and token.type in _PROSE and token.map is not None:
            block = itertools.takewhile(str.strip, lines[slice(*token.map)])
            prose = [line for text in block if not (line := text.strip(" \t\r\n>")).startswith(_NOT_PROSE)]
            if prose:
                return " ".join(prose)
        elif token.type == "heading_open" and not heading:
            heading = following.content
    return heading


def _split_lines(body: str) -> list[str]:
    """Split text at Markdown's line endings, and keep them."""
    # Not `splitlines`, which also splits at form feeds and U+2028.
    return list(io.StringIO(body, newline=""))


def _list_headings(body: str) -> Iterator[_Heading]:
    for before, token in itertools.pairwise(_BLOCKS.parse(body)):
        # Headings inside a quote or a list are not sections.
        if before.type == "heading_open" and before.level == 0 and before.map is not None:
            yield _Heading(int(before.tag.removeprefix("h")), _plain_text(token.content), before.map[0])


class _TreeBuilder:
    def __init__(self, lines: list[str], headings: list[_Heading], first_line: int) -> None:
        self._headings = headings
        self._first_line = first_line
        self._starts = [0]
        self._bytes = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
            self._bytes.append(self._bytes[-1] + len(line.encode("utf-8", "surrogatepass")))
        self._slugs = _unique_slugs([heading.text for heading in headings])

    def build(self) -> tuple[Section, ...]:
        return self._siblings(0, len(self._headings))

    def _siblings(self, at: int, end: int) -> tuple[Section, ...]:
        found: list[Section] = []
        while at < end:
            following = self._next_at_level(at, end)
            found.append(self._section(at, following))
            at = following
        return tuple(found)

    def _next_at_level(self, at: int, end: int) -> int:
        level = self._headings[at].level
        return next((index for index in range(at + 1, end) if self._headings[index].level <= level), end)

    def _section(self, at: int, following: int) -> Section:
        heading = self._headings[at]
        end_index = self._headings[following].index if following < len(self._headings) else len(self._starts) - 1
        return Section(
            level=heading.level,
            text=heading.text,
            slug=self._slugs[at],
            line=heading.index + self._first_line,
            end_line=end_index - 1 + self._first_line,
            start=self._starts[heading.index],
            end=self._starts[end_index],
            start_byte=self._bytes[heading.index],
            end_byte=self._bytes[end_index],
            children=self._siblings(at + 1, following),
        )


def _unique_slugs(texts: list[str]) -> list[str]:
    used: set[str] = set()
    counts: dict[str, int] = {}
    slugs: list[str] = []
    for text in texts:
        slug = base = _NOT_IN_SLUG.sub("", text.lower()).strip().replace(" ", "-")
        # More than once: a heading can have the text of a numbered slug, such as `Usage 1` after two times `Usage`.
        while slug in used:
            counts[base] = counts.get(base, 0) + 1
            slug = f"{base}-{counts[base]}"
        used.add(slug)
        slugs.append(slug)
    return slugs


def _plain_text(text: str) -> str:
    (inline,) = _INLINE.parseInline(text)
    return "".join(_list_words(inline.children or ())).strip()


def _list_words(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        yield " " if token.type in ("softbreak", "hardbreak") else "" if token.children else token.content
        yield from _list_words(token.children or ())
