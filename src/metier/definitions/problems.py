"""What is wrong with a file, where, and what to do: the one shape every reader of files reports in."""

from typing import Literal

from msgspec import Struct

type Severity = Literal["error", "warning"]


class Problem(Struct, frozen=True, kw_only=True):
    """One finding. An error keeps a definition from loading; a warning does not."""

    severity: Severity
    code: str
    """Stable and greppable, e.g. `unknown_key`."""
    message: str
    """One sentence, capital letter, no final dot."""
    file: str = ""
    line: int | None = None
    hint: str = ""
    subject: str = ""
    """The name of the definition that it is about, if the file does not tell."""

    def render(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        start = f"{place}: " if place else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{start}{self.severity}: {self.message} [{self.code}]{hint}"


def has_errors(problems: tuple[Problem, ...] | list[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)
