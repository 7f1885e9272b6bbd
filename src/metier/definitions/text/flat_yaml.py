"""The fast way through the front matter most people write: one-line fields, simple lists, blocks of text.

What it accepts it reads exactly as `yaml_text.read_yaml` would; a property test holds the two together. Everything
doubtful is `None`, and the real reader decides.
"""

from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence
from metier.lazy_regex import lazy_regex

_MAX = 8 * 1024
_MAX_KEY = 64
_PLAIN = r"[A-Za-z0-9_./(\u00c0-\u024f\u3040-\u30ff\u4e00-\u9fff](?:[^:#]++|:(?=[^\s:])|(?<=\S)#)*+"
_VALUE = rf"""(?:"([^"\\]*)"|'([^']*)'|({_PLAIN}))"""
_FIELD = lazy_regex(rf"([A-Za-z_][A-Za-z0-9_-]*):(?: +(?:{_VALUE}|\[([^\[\]]*)\]|([|>]-?)) *)?")
_ITEM = lazy_regex(rf"- +{_VALUE} *")
_FLOW_ITEM = lazy_regex(r""" *(?:"([^"\\]*)"|'([^']*)'|([A-Za-z0-9_][A-Za-z0-9_./() +-]*)) *""")
_FOLD = lazy_regex(r"\n+")
_INNER = lazy_regex(rf"([A-Za-z_][A-Za-z0-9_-]*): +{_VALUE} *")


def read_flat(text: str, *, first_line: int = 1) -> Mapping | None:
    """The mapping, or `None` where the text is anything but distinct simple fields."""
    # Without a last end of line a block of text would end differently.
    if len(text) > _MAX or text[-1:] != "\n" or not text.replace("\n", "").isprintable():
        return None
    lines = text.split("\n")
    entries: list[Entry] = []
    seen: set[str] = set()
    at = 0
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        end = _block_end(lines, at)
        entry = _read_field(lines[at:end], at + first_line)
        if entry is None or entry.key in seen:
            return None
        seen.add(entry.key)
        entries.append(entry)
        at = end
    return Mapping(tuple(entries), entries[0].line) if entries else None


def _block_end(lines: list[str], start: int) -> int:
    """Where the lines that belong to the field in line `start` end: indented, empty, or list items at the margin."""
    at = start + 1
    while at < len(lines) and lines[at][:1] in ("", " ", "-"):
        at += 1
    while not lines[at - 1]:
        at -= 1
    return at


def _read_field(lines: list[str], line: int) -> Entry | None:
    found = _FIELD.fullmatch(lines[0])
    if found is None or found.end(1) > _MAX_KEY:
        return None
    key, double, single, plain, flow, style = found.groups()
    value: Node | None = None
    if len(lines) > 1:
        if style:
            value = _read_text(lines[1:], style, line)
        elif double is single is plain is flow:
            value = _read_nested(lines[1:], line + 1)
    elif flow is not None:
        value = _read_flow(flow, line)
    elif style is None:
        value = _scalar(double, single, plain, line=line)
    return None if value is None else Entry(key, line, value)


def _scalar(double: str | None, single: str | None, plain: str | None, *, line: int) -> Scalar:
    if double is not None or single is not None:
        return Scalar(double if double is not None else single or "", line, is_plain=False)
    return Scalar(plain.rstrip(" ") if plain else "", line)


def _read_text(lines: list[str], style: str, line: int) -> Scalar | None:
    """A block of text. Folding is done only where every line has the same margin."""
    margin = " " * (len(lines[0]) - len(lines[0].lstrip(" ")))
    if not margin or any(not text.startswith(margin) or text.isspace() for text in lines if text) or not lines[0]:
        return None
    cut = [text[len(margin) :] for text in lines]
    if style[0] == "|":
        joined = "\n".join(cut)
    elif any(text[:1] == " " for text in cut):
        return None
    else:
        # One end of line becomes a space, each empty line after it an end of line.
        joined = _FOLD.sub(lambda ends: "\n" * (len(ends.group()) - 1) or " ", "\n".join(cut))
    return Scalar(joined if style.endswith("-") else joined + "\n", line, is_plain=False)


def _read_nested(lines: list[str], line: int) -> Node | None:
    """A list or a mapping of one-line values, all at one margin."""
    margin = " " * (len(lines[0]) - len(lines[0].lstrip(" ")))
    if any(not text.startswith(margin) for text in lines):
        return None
    cut = [text[len(margin) :] for text in lines]
    if cut[0].startswith("-"):
        items = [_ITEM.fullmatch(text) for text in cut]
        if any(item is None for item in items):
            return None
        found = (_scalar(*item.groups(), line=at) for at, item in enumerate(items, line) if item)
        return Sequence(tuple(found), line)
    return _read_inner(cut, line) if margin else None


def _read_inner(lines: list[str], line: int) -> Mapping | None:
    entries: dict[str, Entry] = {}
    for at, text in enumerate(lines, line):
        found = _INNER.fullmatch(text)
        if found is None or found.group(1) in entries or found.end(1) > _MAX_KEY:
            return None
        key, double, single, plain = found.groups()
        entries[key] = Entry(key, at, _scalar(double, single, plain, line=at))
    return Mapping(tuple(entries.values()), line)


def _read_flow(text: str, line: int) -> Sequence | None:
    if not text.strip(" "):
        return Sequence((), line)
    items = [_FLOW_ITEM.fullmatch(part) for part in text.split(",")]
    if any(item is None for item in items):
        return None
    return Sequence(tuple(_scalar(*item.groups(), line=line) for item in items if item), line)
