"""Problems of files, with line and hint: the common format of every file reader."""

from typing import Literal

from msgspec import Struct

type Severity = Literal["error", "warning"]


class Problem(Struct, frozen=True, kw_only=True):
    """A problem of a file. An error prevents loading the definition; a warning does not."""

    severity: Severity
    code: str
    """Stable identifier, e.g. `unknown_key`."""
    message: str
    """A sentence with a capital letter and no final period."""
    file: str = ""
    line: int | None = None
    hint: str = ""
    subject: str = ""
    """Name of the definition, if the file does not identify it."""

    def render(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        start = f"{place}: " if place else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{start}{self.severity}: {self.message} [{self.code}]{hint}"


def has_errors(problems: tuple[Problem, ...] | list[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)
