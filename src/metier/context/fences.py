"""Put outside text between marks that it cannot close: what stands in there is data, whatever it says. Pure."""

import re

from metier.lazy_regex import lazy_regex

SKILL_CONTENT = "skill-content"
TOOL_OUTPUT = "tool-output"
"""For results that no native tool message carries."""
ATTACHED_FILE = "attached-file"
"""For the text of a file that the user attached to a task."""
PROJECT_TEXT = "project-text"
"""For project instructions of a folder that the user has not trusted."""

_MARKS = lazy_regex(rf"<(?=/?(?:{SKILL_CONTENT}|{TOOL_OUTPUT}|{ATTACHED_FILE}|{PROJECT_TEXT}))", re.IGNORECASE)


def fence(text: str, *, tag: str, attributes: str = "") -> str:
    """The text on lines of its own, between `<tag …>` and `</tag>`. `attributes` must be safe to print."""
    opening = f"{tag} {attributes}" if attributes else tag
    return f"<{opening}>\n{escape_marks(text)}\n</{tag}>"


def escape_marks(text: str) -> str:
    """Neither mark can be opened or closed from inside."""
    return _MARKS.sub("&lt;", text)
