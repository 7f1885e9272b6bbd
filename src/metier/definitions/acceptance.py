"""When a step of a task counts as done: criteria for the model to read, and those that can be checked."""

from dataclasses import dataclass

from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Mapping, Node, Scalar, Sequence

_KEYS = ("file", "contains", "command", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One thing that must hold. Without `file` and `command` only the model can judge it."""

    text: str = ""
    """In words."""
    file: str = ""
    """Below the workspace; it must be there and not be empty."""
    contains: str = ""
    """A text that is in the file."""
    command: str = ""
    """A program and its arguments, run in the workspace; it must end with exit code 0."""

    @property
    def is_checkable(self) -> bool:
        return bool(self.file or self.command)


def read_acceptance(fields: Fields) -> tuple[Criterion, ...]:
    """The list below `acceptance`; every mistake is reported."""
    entry = fields.find("acceptance")
    if entry is None:
        return ()
    if not isinstance(entry.value, Sequence):
        hint = "Write one '- …' for each criterion"
        fields.report("error", "not_a_list", "Field 'acceptance' must be a list", line=entry.line, hint=hint)
        return ()
    found = [_read_criterion(fields, item) for item in entry.value.items]
    return tuple(criterion for criterion in found if criterion is not None)


def list_commands(fields: Fields) -> dict[str, int]:
    """The commands below `acceptance` and their lines, also of a list with mistakes in it."""
    entry = fields.find("acceptance")
    items = entry.value.items if entry is not None and isinstance(entry.value, Sequence) else ()
    found = [item.find("command") for item in items if isinstance(item, Mapping)]
    return {each.value.value.strip(): each.value.line for each in found if each and isinstance(each.value, Scalar)}


def render_criterion(criterion: Criterion) -> str:
    """One line for the agent that has to meet it."""
    said = [criterion.text] if criterion.text else []
    if criterion.file and criterion.contains:
        said.append(f"the file {criterion.file} contains {criterion.contains!r}")
    elif criterion.file:
        said.append(f"the file {criterion.file} is there and not empty")
    if criterion.command:
        said.append(f"`{criterion.command}` ends with exit code 0")
    return "; ".join(said)


def _read_criterion(fields: Fields, item: Node) -> Criterion | None:
    if isinstance(item, Scalar) and item.value.strip():
        return Criterion(text=item.value.strip())
    if not isinstance(item, Mapping):
        hint = "Write a sentence, or 'file: …' or 'command: …'"
        fields.report("error", "criterion", "A criterion must be text or a mapping", line=item.line, hint=hint)
        return None
    inner = Fields(item, file=fields.file, strict=True, problems=fields.problems, first_line=item.line)
    inner.check_keys(_KEYS)
    file, command = inner.text("file") or "", inner.text("command") or ""
    contains, text = inner.text("contains") or "", inner.text("text") or ""
    if not (file or command or text):
        inner.report("error", "criterion", "A criterion must say what is to hold", line=item.line)
        return None
    if contains and not file:
        hint = "Add 'file: …'"
        inner.report("error", "criterion", "'contains' needs the file that it speaks of", line=item.line, hint=hint)
        return None
    return Criterion(text=text, file=file, contains=contains, command=command)
