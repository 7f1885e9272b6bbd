"""Replace one exact text by another in a file's text, or say precisely why not. Pure."""

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.definitions.spelling import measure_common, rank
from metier.errors import ToolFailed
from metier.tools.files.text import decode, name_kind

_SHOWN_LINES = 5
_SHOWN_CHARACTERS = 160
_SEARCHED_LINES = 20_000
_MIN_SIMILARITY = 0.55


@dataclass(frozen=True, slots=True)
class Edited:
    text: str
    lines: tuple[int, ...]
    """Where the replaced texts began, counted from 1."""


def replace_exactly(text: str, old: str, new: str, *, every: bool) -> Edited:
    """Raises `ToolFailed` when `old` is not there, or is there more than once and `every` is not set.

    In a file with Windows line ends, a plain line end in `old` and `new` means that of the file.
    """
    if not old:
        raise ToolFailed("The old text is empty", hint="Use Write to create a file", code="invalid_input")
    if old == new:
        raise ToolFailed("The old and the new text are the same", code="invalid_input")
    if _has_windows_lines(text):
        old, new = _to_windows(old), _to_windows(new)
    places = _find_all(text, old)
    if not places:
        raise ToolFailed(f"The old text is not in the file{_describe_nearest(text, old)}", code="not_found")
    lines = _count_lines(text, places)
    if len(places) > 1 and not every:
        where = ", ".join(map(str, lines[:_SHOWN_LINES])) + (", …" if len(places) > _SHOWN_LINES else "")
        raise ToolFailed(
            f"The old text occurs {len(places)} times, on lines {where}",
            hint="Give more of the text around it, or set replace_all",
            code="ambiguous",
        )
    return Edited(text.replace(old, new), lines)


def _find_all(text: str, old: str) -> list[int]:
    places: list[int] = []
    place = text.find(old)
    while place >= 0:
        places.append(place)
        place = text.find(old, place + len(old))
    return places


def _count_lines(text: str, places: list[int]) -> tuple[int, ...]:
    lines: list[int] = []
    line, behind = 1, 0
    for place in places:
        line += text.count("\n", behind, place)
        behind = place
        lines.append(line)
    return tuple(lines)


def _has_windows_lines(text: str) -> bool:
    """Only where every line ends so: in a mixed file a plain line end is what it says."""
    ends = text.count("\n")
    return ends > 0 and text.count("\r\n") == ends


def _to_windows(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _describe_nearest(text: str, old: str) -> str:
    """The line that is most like the first line of what was looked for."""
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [line.strip() for line in text.splitlines()[:_SEARCHED_LINES]]
    if not wanted or not lines:
        return ""
    if wanted in lines:
        number = lines.index(wanted) + 1
        return f"; line {number} has its first line, so the white space or what follows differs"
    nearest = rank(wanted, lines, measure_common, at_least=_MIN_SIMILARITY, most=1)
    return f"; the nearest is line {nearest[0].place + 1}: {nearest[0].text[:_SHOWN_CHARACTERS]!r}" if nearest else ""


def edit_bytes(before: bytes, arguments: dict[str, JsonValue]) -> tuple[bytes, tuple[int, ...]]:
    """The bytes after an edit, and the lines that it begins on. Raises `ToolFailed` when it cannot be done."""
    path = str(arguments["path"])
    found = decode(before)
    if found is None:
        raise ToolFailed(f"File {path!r} is not text but {name_kind(before)}", code="binary")
    every = arguments.get("replace_all") is True
    edited = replace_exactly(found.text, str(arguments["old"]), str(arguments["new"]), every=every)
    return found.encode(edited.text), edited.lines
