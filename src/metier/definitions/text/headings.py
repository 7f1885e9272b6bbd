"""The heading tree of a Markdown body: what each section is called and where it lies. Renders nothing."""

from collections.abc import Iterator

from metier.dataclass import dataclass
from metier.lazy_regex import lazy_regex

_ATX = lazy_regex(r" {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*")
_SETEXT = lazy_regex(r" {0,3}(=+|-+)[ \t]*")
_FENCE = lazy_regex(r" {0,3}(`{3,}|~{3,})(.*)")
_NOT_A_PARAGRAPH = lazy_regex(r" {4}|\t| {0,3}(?:[-*+][ \t]|\d{1,9}[.)][ \t]|>|<|\||#)")
_LINK = lazy_regex(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKS = lazy_regex(r"[`*]|(?<!\w)_|_(?!\w)|~~")
_NOT_IN_SLUG = lazy_regex(r"[^\w\- ]")
_NOT_PROSE = lazy_regex(r"[ \t]*(?:#|[-*_=]{3,}[ \t]*$|<|!\[|\[!|\|)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with everything up to the next heading of its level or above."""

    level: int
    text: str
    """Without Markdown marks."""
    slug: str
    """Unique in its body: a second `usage` is `usage-1`."""
    line: int
    end_line: int
    """The last line of the section, deeper sections included."""
    start: int
    end: int
    """Positions in the text of the body."""
    start_byte: int
    end_byte: int
    """The same in its UTF-8 form."""
    children: tuple["Section", ...] = ()


@dataclass(frozen=True, slots=True)
class _Heading:
    level: int
    text: str
    index: int
    """The line of the body, from 0, in which the heading begins."""


def parse_sections(body: str, *, first_line: int = 1) -> tuple[Section, ...]:
    """The sections of the top level, each with its own below it."""
    lines = body.splitlines(keepends=True) if "\r" in body else body.split("\n")
    if "\r" not in body:
        lines = [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    headings = list(_find_headings([line.rstrip("\r\n") for line in lines]))
    return _TreeBuilder(lines, headings, first_line).build()


def walk_sections(sections: tuple[Section, ...]) -> Iterator[Section]:
    """Every section in the order of the text."""
    for section in sections:
        yield section
        yield from walk_sections(section.children)


def find_section(sections: tuple[Section, ...], name: str) -> Section | None:
    """By heading text in any case, else by slug; of several with one text the first."""
    wanted = _plain_text(name).casefold()
    every = list(walk_sections(sections))
    for section in every:
        if section.text.casefold() == wanted:
            return section
    return next((section for section in every if section.slug == name.casefold().lstrip("#")), None)


def first_paragraph(body: str) -> str:
    """The first run of prose lines: no heading, rule, table, image or code; else the first heading's text."""
    heading = ""
    lines: list[str] = []
    for line in _outside_fences(body.split("\n")):
        if line.strip() and not _NOT_PROSE.match(line):
            lines.append(line.strip(" \t>"))
        elif lines:
            break
        elif line.lstrip().startswith("#") and not heading:
            heading = line.strip("# \t")
    return " ".join(lines) or heading


def _find_headings(lines: list[str]) -> Iterator[_Heading]:
    paragraph: list[str] = []
    begin = 0
    for index, line in enumerate(_outside_fences(lines)):
        atx = _ATX.fullmatch(line)
        if atx:
            yield _Heading(len(atx.group(1)), _plain_text(atx.group(2) or ""), index)
        elif paragraph and (underline := _SETEXT.fullmatch(line)):
            yield _Heading(1 if underline.group(1)[0] == "=" else 2, _plain_text(" ".join(paragraph)), begin)
        elif line.strip() and (paragraph or not _NOT_A_PARAGRAPH.match(line)):
            begin = begin if paragraph else index
            paragraph.append(line.strip())
            continue
        paragraph = []


def _outside_fences(lines: list[str]) -> Iterator[str]:
    """The lines, with those of code blocks and comments blank, so that numbers stay."""
    fence = ""
    in_comment = False
    for line in lines:
        mark = _FENCE.fullmatch(line)
        if fence:
            if mark and mark.group(1).startswith(fence) and not mark.group(2).strip():
                fence = ""
            yield ""
        elif in_comment:
            in_comment = "-->" not in line
            yield ""
        elif mark and not (mark.group(1)[0] == "`" and "`" in mark.group(2)):
            fence = mark.group(1)
            yield ""
        elif line.lstrip().startswith("<!--"):
            in_comment = "-->" not in line
            yield ""
        else:
            yield line


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
        while slug in used:
            counts[base] = counts.get(base, 0) + 1
            slug = f"{base}-{counts[base]}"
        used.add(slug)
        slugs.append(slug)
    return slugs


def _plain_text(text: str) -> str:
    return _MARKS.sub("", _LINK.sub(r"\1", text)).strip()
