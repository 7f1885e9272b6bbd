"""The heading tree of a Markdown body: what it is called, where it lies, and one section by name."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_NOT_PROSE = re.compile(r"[ \t]*(?:#|[-*_=]{3,}[ \t]*$|<|!\[|\[!|\||```|~~~)")


def first_paragraph(body: str) -> str:
    """The first run of prose lines: no heading, rule, table, image or code; else the first heading's text."""
    heading = ""
    lines: list[str] = []
    fence = ""
    for line in body.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and mark.group(1).startswith(fence) else fence
        elif mark:
            fence = mark.group(1)
        elif line.strip() and not _NOT_PROSE.match(line):
            lines.append(line.strip(" \t>"))
            continue
        elif line.lstrip().startswith("#") and not heading:
            heading = line.strip("# \t")
        if lines:
            break
    return " ".join(lines) or heading
