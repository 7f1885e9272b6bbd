"""Read one settings file against the models: which keys it sets, on which lines, and all that is wrong with it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct
from pydantic import BaseModel

from metier.definitions.nearest import suggest
from metier.definitions.problems import Problem
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence, plain_value, read_yaml
from metier.settings.discovery import SettingsFile, read_text
from metier.settings.environment import variables_of
from metier.settings.fields import Leaf, all_leaves, find_nearest_key, find_section
from metier.settings.model import Settings
from metier.settings.values import Given, Layer, Origin, has_password, is_secret_name, looks_secret, quote

_ONLY_VARIABLES = "Remove it here, replace the key if others could read the file, and set {} in the environment"


class FileLayer(Struct, frozen=True):
    values: Layer
    problems: tuple[Problem, ...]


def read_file(file: SettingsFile) -> FileLayer:
    """What the file says. An empty file says nothing; a bad one says what is wrong with it."""
    content = read_text(file)
    if content.problems:
        return FileLayer({}, content.problems)
    document = read_yaml(content.text, file=file.name)
    walk = _Walk(file.name, problems=list(document.problems))
    if document.root is not None:
        walk.read_root(document.root)
    return FileLayer(walk.values, tuple(walk.problems))


@dataclass(slots=True)
class _Walk:
    """Goes through the sections and collects values and problems."""

    file: str
    problems: list[Problem]
    values: Layer = field(default_factory=dict[str, Given])

    def report(self, code: str, message: str, *, line: int, hint: str = "") -> None:
        self.problems.append(
            Problem(severity="error", code=code, message=message, file=self.file, line=line, hint=hint)
        )

    def read_root(self, root: Node) -> None:
        if isinstance(root, Mapping):
            self.read_section(Settings, root, prefix="")
        elif plain_value(root) is not None:
            hint = f"Begin with a section such as `{next(iter(Settings.model_fields))}:`"
            self.report("not_a_mapping", "The file has no sections at its top level", line=root.line, hint=hint)

    def read_section(self, model: type[BaseModel], node: Mapping, *, prefix: str) -> None:
        for entry in node.entries:
            known = model.model_fields.get(entry.key)
            if known is None:
                self.read_unknown(model, entry, prefix=prefix)
                continue
            section = find_section(known)
            if section is None:
                self.read_leaf(all_leaves()[f"{prefix}{entry.key}"], entry)
            elif isinstance(entry.value, Mapping):
                self.read_section(section, entry.value, prefix=f"{prefix}{entry.key}.")
            elif plain_value(entry.value) is not None:
                hint = f"It has keys such as {next(iter(section.model_fields))!r}, indented below it"
                self.report("wrong_type", f"{prefix}{entry.key} must be a section", line=entry.line, hint=hint)

    def read_unknown(self, model: type[BaseModel], entry: Entry, *, prefix: str) -> None:
        key = f"{prefix}{entry.key}"
        value = entry.value.value if isinstance(entry.value, Scalar) else ""
        if is_secret_name(entry.key, value) or looks_secret(value) or looks_secret(entry.key):
            self.report_secret(quote(key), line=entry.line)
            return
        names = "Keys here" if prefix else "Sections"
        hint = suggest(find_nearest_key(key, model.model_fields, all_leaves()))
        hint = hint or f"{names} are {_list(model.model_fields)}"
        self.report("unknown_key", f"Unknown key {quote(key)}", line=entry.line, hint=hint)

    def report_secret(self, key: str, *, line: int) -> None:
        variable = "DATABASE_URL" if "store." in key else "its variable, such as ANTHROPIC_API_KEY,"
        message = f"{key} holds what looks like a secret; keys come only from environment variables"
        self.report("secret_in_file", message, line=line, hint=_ONLY_VARIABLES.format(variable))

    def read_leaf(self, leaf: Leaf, entry: Entry) -> None:
        if leaf.is_structured and not isinstance(entry.value, Scalar):
            self.set(leaf, json.dumps(plain_value(entry.value)), line=entry.line)
            return
        match entry.value:
            case Scalar() as scalar:
                self.read_scalar(leaf, scalar, line=entry.line)
            case Sequence() as sequence:
                self.read_list(leaf, sequence, line=entry.line)
            case Mapping():
                self.report("wrong_type", f"{leaf.key} must be {_a_type(leaf)}, not a section", line=entry.line)

    def read_scalar(self, leaf: Leaf, scalar: Scalar, *, line: int) -> None:
        value = plain_value(scalar)
        if value is None and not leaf.is_optional:
            hint = "Write a value, or remove the line to get the default"
            self.report("no_value", f"{leaf.key} has no value", line=line, hint=hint)
        elif looks_secret(scalar.value):
            self.report_secret(leaf.key, line=line)
        elif value is not None and leaf.takes_list and value not in leaf.words:
            message = f"{leaf.key} must be {_a_type(leaf)}, not {quote(scalar.value)}"
            self.report("wrong_type", message, line=line, hint="Write it in brackets, with commas")
        else:
            self.set(leaf, None if value is None else scalar.value, line=line)
            self.warn_of_password(leaf, scalar, line=line)

    def warn_of_password(self, leaf: Leaf, scalar: Scalar, *, line: int) -> None:
        if has_password(scalar.value):
            message, hint = f"{leaf.key} has a password in it", f"Set {variables_of(leaf.key)[0]} instead"
            problem = Problem(
                severity="warning", code="password_in_file", message=message, file=self.file, line=line, hint=hint
            )
            self.problems.append(problem)

    def read_list(self, leaf: Leaf, sequence: Sequence, *, line: int) -> None:
        if not leaf.takes_list:
            self.report("wrong_type", f"{leaf.key} must be {_a_type(leaf)}, not a list", line=line)
            return
        items: list[str] = []
        for item in sequence.items:
            if not isinstance(item, Scalar) or plain_value(item) is None:
                self.report("wrong_type", f"{leaf.key} has an entry that is not text", line=item.line)
            elif looks_secret(item.value):
                self.report_secret(leaf.key, line=item.line)
            else:
                items.append(item.value)
        self.set(leaf, tuple(items), line=line)

    def set(self, leaf: Leaf, value: str | tuple[str, ...] | None, *, line: int) -> None:
        self.values[leaf.key] = Given(value, Origin(kind="file", file=self.file, line=line))


def _a_type(leaf: Leaf) -> str:
    """What a value must be, as the end of a sentence."""
    words = f"one of {_list(leaf.words)}" if leaf.words else ""
    others = leaf.type.removeprefix("word or ").removesuffix(" or null")
    if not leaf.words:
        return others if leaf.is_bool or others == "text" else f"a {others}"
    return f"a {others} or {words}" if leaf.takes_list else words


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
