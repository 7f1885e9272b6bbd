"""Where a value came from, and values that came from somewhere but are still text."""

from typing import Literal

from metier.dataclass import dataclass

type OriginKind = Literal["flag", "environment", "file", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who set a value. `file` and `line` are there for the kind `file`."""

    kind: OriginKind
    variable: str = ""
    file: str = ""
    line: int | None = None

    @property
    def detail(self) -> str:
        """The variable, or the file and line; nothing for flags and defaults."""
        return self.variable or (f"{self.file}:{self.line}" if self.line else self.file)

    def render(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Given:
    """A value as the user wrote it, before it gets its type."""

    value: str | tuple[str, ...] | None
    origin: Origin


type Layer = dict[str, Given]
"""What one source says, by dotted key."""
