"""Truncation of long texts, with a mark for the omitted part."""


def cut_middle(text: str, limit: int, *, where: str = "") -> str:
    """Keep the start and the end. The mark between them has the omitted length and, if given, `where` the full text is.

    The result, including the mark, is at most `limit` characters long, unless the mark alone is longer.
    """
    if len(text) <= limit:
        return text
    # Reserve the widest mark: the omitted length, and so the width of its number, depends on the mark itself.
    room = max(0, limit - len(_mark(len(text), where)))
    head, tail = room - room // 2, room // 2
    return f"{text[:head]}{_mark(len(text) - room, where)}{text[len(text) - tail :]}"


def one_line(text: str, limit: int) -> str:
    """Collapse whitespace and truncate with an ellipsis."""
    return cut_end(" ".join(text.split()), limit)


def cut_end(text: str, limit: int) -> str:
    """Truncate with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _mark(characters: int, where: str) -> str:
    source = f"; the full text is in {where}" if where else ""
    return f"\n[… {characters} characters omitted{source} …]\n"
