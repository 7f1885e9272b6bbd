"""Take typed values out of a front matter mapping and write down what is not as it should be."""

from collections.abc import Collection
from dataclasses import dataclass, field

from metier.definitions.problems import Problem, Severity, has_errors
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence, flat_texts, is_nothing
from metier.telemetry.sanitize import sanitize


@dataclass(slots=True)
class Fields:
    """Reads the entries of one mapping. In `strict` a deviation is an error, else a warning."""

    mapping: Mapping
    file: str
    strict: bool
    problems: list[Problem] = field(default_factory=list[Problem])
    first_line: int = 1
    """Where to point when a field is missing."""
    _index: dict[str, Entry] = field(init=False)

    def __post_init__(self) -> None:
        self._index = {entry.key: entry for entry in self.mapping.entries}

    def report(self, severity: Severity, code: str, message: str, *, line: int | None, hint: str = "") -> None:
        self.problems.append(
            Problem(severity=severity, code=code, message=message, file=self.file, line=line, hint=hint)
        )

    def deviate(self, code: str, message: str, *, line: int | None, hint: str = "") -> None:
        """Report what the rules do not allow but a lenient reader can live with."""
        self.report("error" if self.strict else "warning", code, message, line=line, hint=hint)

    def find(self, key: str) -> Entry | None:
        """The entry of that key, unless it has no value."""
        entry = self._index.get(key)
        return None if entry is None or is_nothing(entry.value) else entry

    def line_of(self, key: str) -> int:
        """The line of a key, also of one without a value; else the first."""
        entry = self._index.get(key)
        return entry.line if entry else self.first_line

    @property
    def is_unreadable(self) -> bool:
        """Nothing of it could be read, and that is reported."""
        return not self._index and has_errors(self.problems)

    def has_any(self, keys: Collection[str]) -> bool:
        return not self._index.keys().isdisjoint(keys)

    def node(self, key: str) -> Node | None:
        entry = self.find(key)
        return entry.value if entry else None

    def text(self, key: str) -> str | None:
        """A single text; a list of texts is joined by a comma and reported."""
        entry = self.find(key)
        if entry is None:
            return None
        match entry.value:
            case Scalar(value=value):
                return self._shown(key, value.strip(), line=entry.line)
            case Sequence() | Mapping():
                self.deviate("not_text", f"Field {key!r} must be text", line=entry.line, hint="Write it as one value")
                return self._shown(key, ", ".join(flat_texts(entry.value)), line=entry.line) or None

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts; one text counts as a list of one, separated by commas."""
        entry = self.find(key)
        if entry is None:
            return None
        match entry.value:
            case Scalar(value=value):
                return tuple(part.strip() for part in value.split(",") if part.strip())
            case Sequence():
                return tuple(flat_texts(entry.value))
            case Mapping():
                self.deviate("not_a_list", f"Field {key!r} must be a list", line=entry.line)
                return None

    def _shown(self, key: str, text: str, *, line: int) -> str:
        """The text as a user and a model see it: nothing in it can hide, and what would is reported."""
        shown = sanitize(text)
        if shown != text:
            odd = next(char for char in text if sanitize(char) != char)
            message = f"Field {key!r} holds hidden or control characters, first U+{ord(odd):04X}; they are made visible"
            self.report("warning", "hidden_characters", message, line=line, hint="Remove them")
        return shown
