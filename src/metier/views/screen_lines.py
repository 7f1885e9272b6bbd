"""Truncate and indent the lines of a screen. Pure."""

from rich.text import Text


def fit(text: Text, width: int) -> Text:
    """Truncate to one screen line, by characters first: measuring a line of a megabyte takes too long."""
    if len(text) > 4 * width:
        text = text[: 4 * width]
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def indent(text: Text, depth: int = 1) -> Text:
    """Indent a line by two columns per level."""
    if not depth:
        return text
    indented = Text("  " * depth, no_wrap=text.no_wrap)
    indented.append_text(text)
    return indented
