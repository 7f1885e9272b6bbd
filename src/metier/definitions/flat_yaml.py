"""The fast way through front matter that is only `key: value` lines. Says nothing about any other text.

What it accepts it reads exactly as `yaml_text.read_yaml` would; a property test holds the two together. Everything
doubtful is `None`, and the real reader decides.
"""

import re

from metier.definitions.yaml_text import Entry, Mapping, Scalar

_KEY = r"[A-Za-z_][A-Za-z0-9_-]*"
_PLAIN = r"[A-Za-z0-9_./(\u00c0-\u024f](?:[^:#]|:(?=[^\s:])|(?<=\S)#)*"
_LINE = re.compile(rf'({_KEY}):(?: +(?:"([^"\\]*)"|({_PLAIN})) *)?')
_MAX = 8 * 1024


def read_flat(text: str, *, first_line: int = 1) -> Mapping | None:
    """The mapping, or `None` where the text is anything but distinct one-line fields."""
    if len(text) > _MAX or not text.replace("\n", "").isprintable():
        return None
    entries: list[Entry] = []
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), first_line):
        if not line:
            continue
        entry = _read_line(line, number)
        if entry is None or entry.key in seen:
            return None
        seen.add(entry.key)
        entries.append(entry)
    return Mapping(tuple(entries), entries[0].line) if entries else None


def _read_line(line: str, number: int) -> Entry | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    key, quoted, plain = found.groups()
    if quoted is not None:
        return Entry(key, number, Scalar(quoted, number, is_plain=False))
    return Entry(key, number, Scalar(plain.rstrip(" ") if plain else "", number))
