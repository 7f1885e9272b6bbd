"""When a step of a task counts as done: criteria for the model to read, and those that can be checked."""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BeforeValidator, model_validator

from metier.definitions.reader import FileModel, Items, Text, fault
from metier.definitions.text.yaml_text import Entry, Mapping, Scalar, Sequence


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


def _read_item(value: object) -> object:
    """A criterion of one text is its `text`."""
    if not isinstance(value, Scalar):
        return value
    if not value.value.strip():
        raise fault("criterion", "must be text or a mapping", "Write a sentence, or 'file: …' or 'command: …'")
    return Mapping((Entry("text", value.line, value),), value.line)


class CriterionFields(FileModel):
    file: Text = ""
    contains: Text = ""
    command: Text = ""
    text: Text = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.file or self.command or self.text):
            raise fault("criterion", "must have 'file', 'command' or 'text'")
        if self.contains and not self.file:
            raise fault("criterion", "'contains' needs a file", "Add 'file: …'")
        return self

    def build(self) -> Criterion:
        return Criterion(text=self.text, file=self.file, contains=self.contains, command=self.command)


Acceptance = Items[Annotated[CriterionFields, BeforeValidator(_read_item)]]
"""The list below `acceptance`."""


def list_commands(root: Mapping) -> dict[str, int]:
    """The commands below `acceptance` and their lines, also of a list with mistakes in it."""
    acceptance = root.find_value("acceptance")
    items = acceptance.items if isinstance(acceptance, Sequence) else ()
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
