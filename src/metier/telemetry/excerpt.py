"""Show part of a text that is too long, and that it is a part. Knows nothing of tokens, layers or secrets."""


def cut_middle(text: str, most: int, *, where: str = "") -> str:
    """The beginning and the end, between them how much is missing and, if given, `where` all of it is.

    The mark counts: what comes out is never longer than `most`, unless the mark alone is.
    """
    if len(text) <= most:
        return text
    # As wide as the widest mark, so that the number in it can be the true one.
    room = max(0, most - len(_mark(len(text), where)))
    head, tail = room - room // 2, room // 2
    return f"{text[:head]}{_mark(len(text) - room, where)}{text[len(text) - tail :]}"


def one_line(text: str, most: int) -> str:
    """A text for one line of a list: white space folded, the rest an ellipsis."""
    return cut_end(" ".join(text.split()), most)


def cut_end(text: str, most: int) -> str:
    """The beginning, with an ellipsis for the rest."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _mark(characters: int, where: str) -> str:
    told = f"; all of it is in {where}" if where else ""
    return f"\n[… {characters} characters left out{told} …]\n"
