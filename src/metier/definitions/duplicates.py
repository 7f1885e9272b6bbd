"""Two definitions with one id."""

from metier.definitions.files.walk import FoundDefinition
from metier.definitions.problems import Problem


def report_duplicate(found: FoundDefinition, first: str) -> Problem:
    message = f"ID {found.id!r} is the same as that of '{first}' where case does not count"
    hint = "Rename one of the folders"
    return Problem(severity="error", code="duplicate_id", message=message, file=found.path, line=1, hint=hint)
