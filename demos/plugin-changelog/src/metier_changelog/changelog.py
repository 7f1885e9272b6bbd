"""Read one release out of a changelog. Knows nothing of Metier."""

import re
from pathlib import Path

_HEADING = re.compile(r"^##\s+\[?(?P<version>[^\]\s]+)\]?", re.MULTILINE)


def read_release(file: Path, version: str = "") -> str:
    """The section of a version, by default of the first one. Raises `LookupError`."""
    text = file.read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    for number, heading in enumerate(headings):
        if not version or heading["version"] == version:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(text)
            return text[heading.start() : end].strip()
    raise LookupError(f"{file.name} has no version {version!r}" if version else f"{file.name} has no version")
