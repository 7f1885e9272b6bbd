"""The sources of settings: file, environment variables and flags, each checked against the models.

Problems name their source: a key with file and line, a variable, or a flag.
"""

import json
import re
from collections.abc import Collection, Iterator
from collections.abc import Mapping as MappingABC

from msgspec import Struct, field
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from metier.definitions.nearest import find_nearest, suggest
from metier.definitions.problems import Problem, Severity
from metier.definitions.reader import BAD_VALUE, SWITCH_WORDS, UNKNOWN_KEY, explain, get_line, join_words
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Plain, Scalar, Sequence, plain_value, read_yaml
from metier.settings.discovery import SettingsFile, read_text
from metier.settings.keys import NOT_SETTINGS, Leaf, all_leaves, find_nearest_key, find_section, variables_of
from metier.settings.sections import Settings
from metier.settings.setting_values import (
    Given,
    Layer,
    Origin,
    has_password,
    is_secret_name,
    looks_secret,
    quote,
)

type Tree = dict[str, object]

_TOGETHER = "together"
"""Type of an error about two settings, which can only be checked in the merged layers."""
_WHOLE_NUMBER = re.compile(r"[-+]?\d+")
_PATTERN_PHRASES = {
    "_env": "must be the name of an environment variable (letters, digits and _)",
    "_url": "must be an address that begins with http:// or https://",
    ".queue": "must be a name of letters, digits, - and _, 63 at most",
}
_ONLY_VARIABLES = "Remove it here, revoke the key if others could read the file, and set {} in the environment"


class SourceLayer(Struct, frozen=True):
    values: Layer = {}
    problems: tuple[Problem, ...] = ()


def read_file(file: SettingsFile) -> SourceLayer:
    """Read the settings of a file, with the problems of its text and keys."""
    content = read_text(file)
    if content.problems:
        return SourceLayer({}, content.problems)
    document = read_yaml(content.text, file=file.name)
    walk = _Walk(file.name, problems=list(document.problems))
    if document.root is not None:
        walk.read_root(document.root)
    return SourceLayer(walk.values, tuple(walk.problems))


class _Walk(Struct):
    """Collects values and problems from the sections of a file."""

    file: str
    problems: list[Problem]
    values: Layer = field(default_factory=dict[str, Given])

    def report(  # noqa: PLR0917 - what a problem is made of
        self, code: str, message: str, line: int, hint: str = "", *, severity: Severity = "error"
    ) -> None:
        problem = Problem(severity=severity, code=code, message=message, file=self.file, line=line, hint=hint)
        self.problems.append(problem)

    def read_root(self, root: Node) -> None:
        if isinstance(root, Mapping):
            self.read_section(Settings, root, prefix="")
        elif plain_value(root) is not None:
            hint = f"Start with a section such as `{next(iter(Settings.model_fields))}:`"
            self.report("not_a_mapping", "The file must be a mapping", root.line, hint)

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
                self.report("not_a_mapping", f"{prefix}{entry.key} must be a mapping", entry.line, hint)

    def read_unknown(self, model: type[BaseModel], entry: Entry, *, prefix: str) -> None:
        key = f"{prefix}{entry.key}"
        value = entry.value.value if isinstance(entry.value, Scalar) else ""
        if is_secret_name(entry.key, value) or looks_secret(value) or looks_secret(entry.key):
            self.report_secret(quote(key), entry.line)
            return
        hint = suggest(find_nearest_key(key, model.model_fields, all_leaves()))
        hint = hint or f"Known keys: {', '.join(model.model_fields)}"
        self.report(UNKNOWN_KEY, f"Unknown key {quote(key)}", entry.line, hint)

    def report_secret(self, key: str, line: int) -> None:
        variable = "DATABASE_URL" if "store." in key else "its variable, such as ANTHROPIC_API_KEY,"
        message = f"{key} holds what looks like a secret; keys come only from environment variables"
        self.report("secret_in_file", message, line, _ONLY_VARIABLES.format(variable))

    def read_leaf(self, leaf: Leaf, entry: Entry) -> None:
        value = plain_value(entry.value)
        if value is None and not leaf.is_optional:
            hint = "Add a value, or remove the line to use the default"
            self.report("no_value", f"{leaf.key} has no value", entry.line, hint)
            return
        # The models take such a value as JSON text, because a variable can hold nothing else.
        if leaf.is_structured and not isinstance(value, str | None):
            value = json.dumps(value)
        elif (line := _find_secret(entry)) is not None:
            self.report_secret(leaf.key, line)
            return
        elif isinstance(value, str) and has_password(value):
            message, hint = f"{leaf.key} contains a password", f"Set {variables_of(leaf.key)[0]} instead"
            self.report("password_in_file", message, entry.line, hint, severity="warning")
        origin = Origin(kind="file", file=self.file, line=entry.line)
        self.values[leaf.key] = Given(value, origin, entry.value)


def _find_secret(entry: Entry) -> int | None:
    """Find the line of a value or list item that looks like a secret."""
    if isinstance(entry.value, Sequence):
        secrets = (item.line for item in entry.value.items if isinstance(item, Scalar) and looks_secret(item.value))
        return next(secrets, None)
    return entry.line if isinstance(entry.value, Scalar) and looks_secret(entry.value.value) else None


def read_environment(environ: MappingABC[str, str]) -> SourceLayer:
    """Read the settings of the environment. Empty variables count as unset."""
    values: Layer = {}
    warnings: list[Problem] = []
    for leaf in all_leaves().values():
        # CI systems and Compose set a variable without a value to an empty text.
        present = [name for name in variables_of(leaf.key) if environ.get(name, "").strip()]
        if not present:
            continue
        origin = Origin(kind="environment", variable=present[0])
        values[leaf.key] = Given(split_text(leaf, environ[present[0]]), origin)
        warnings.extend(_outvoted(present, environ))
    return SourceLayer(values, tuple(warnings))


def split_text(leaf: Leaf, text: str) -> Plain:
    """Split a list that is written as JSON, or as items separated by commas."""
    # A word such as `all` is the value itself, not a list with one name.
    if not leaf.takes_list or text.strip() in leaf.words:
        return text.strip()
    items = read_json_list(text)
    if items is not None:
        return items
    return [item.strip() for item in text.split(",") if item.strip()]


def read_json_list(text: str) -> list[Plain] | None:
    """Parse a JSON list of texts. Return None for anything else."""
    if not text.lstrip().startswith("["):
        return None
    try:
        items: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, list):
        return None
    texts: list[Plain] = [item for item in items if isinstance(item, str)]
    return texts if len(texts) == len(items) else None


def list_unknown_variables(environ: MappingABC[str, str], *, used: Collection[str]) -> Iterator[Problem]:
    """Warn about variables with the prefix of settings that are neither settings nor `used` otherwise."""
    known = {name for key in all_leaves() for name in variables_of(key)}
    for name in sorted(environ):
        # Only a warning: other programs may use variables with this prefix.
        if name.startswith("AGENT_") and name not in known | NOT_SETTINGS and name not in used:
            nearest = _nearest_variable(name, known)
            message = f"Environment variable {name if name.isidentifier() else quote(name)} is not a setting"
            yield Problem(severity="warning", code="unknown_variable", message=message, hint=suggest(nearest))


def _outvoted(present: list[str], environ: MappingABC[str, str]) -> Iterator[Problem]:
    for name in present[1:]:
        if environ[name].strip() != environ[present[0]].strip():
            message = f"Environment variable {name} is ignored, because {present[0]} has another value"
            yield Problem(severity="warning", code="variable_outvoted", message=message, hint=f"Unset {name}")


def _nearest_variable(name: str, known: set[str]) -> str | None:
    """Find the nearest variable. Case is ignored, and so is the prefix, which would make all names similar."""
    endings = {variable.removeprefix("AGENT_").lower(): variable for variable in sorted(known)}
    nearest = find_nearest(name.removeprefix("AGENT_").lower(), endings)
    return endings[nearest] if nearest else None


def read_flags(flags: MappingABC[str, str]) -> SourceLayer:
    values: Layer = {}
    problems: list[Problem] = []
    for key, text in flags.items():
        leaf = all_leaves().get(key)
        if leaf is None:
            hint = suggest(find_nearest_key(key, (), all_leaves()))
            problems.append(Problem(severity="error", code="unknown_key", message=f"Unknown key {key!r}", hint=hint))
            continue
        values[key] = Given(split_text(leaf, text), Origin(kind="flag"))
    return SourceLayer(values, tuple(problems))


# One source at a time: the message names its source, and a wrong value is reported even if another overrides it.
def check_alone(layer: Layer) -> list[Problem]:
    """Check the values of one layer. Return the problems."""
    problems: list[Problem] = []
    good: Layer = {}
    for key, given in layer.items():
        phrase = _refuse_text(all_leaves()[key], given)
        if phrase:
            problems.append(_build_problem(key, given, phrase))
        else:
            good[key] = given
    errors: dict[str, ErrorDetails] = {}
    for error in _validate(good)[1]:
        # Every member of a union reports an error; the first one is enough.
        if error["type"] != _TOGETHER:
            errors.setdefault(_key_of(error), error)
    problems.extend(_describe(key, layer[key], error) for key, error in errors.items())
    return problems


def check_together(layer: Layer) -> list[Problem]:
    """Check the merged layers. Return conflicts between values."""
    return [_describe_pair(layer, error) for error in _validate(layer)[1] if error["type"] == _TOGETHER]


def build_settings(layer: Layer) -> Settings:
    """Build the settings from checked layers."""
    sections, errors = _validate(layer)
    assert not errors, errors
    # Not validated as a whole: each section was, and pydantic would have to build the validators of all other sections.
    return Settings.model_construct(_fields_set=set(sections), **sections)


def _build_problem(key: str, given: Given, phrase: str, *, code: str = BAD_VALUE, hint: str = "") -> Problem:
    """Build a problem that starts with its source: a key in a file, a variable, or a flag."""
    origin = given.origin
    subject = {"environment": f"Environment variable {origin.variable}", "flag": f"The flag for {key}"}
    match given.value:
        case dict():
            shown = "a mapping"
        case list():
            shown = quote(", ".join(map(str, given.value))) if all_leaves()[key].takes_list else "a list"
        case value:
            shown = quote(value) if value else ""
    return Problem(
        severity="error",
        code=code,
        message=f"{subject.get(origin.kind, key)} {phrase}" + (f", not {shown}" if shown else ""),
        file=origin.file,
        line=origin.line,
        hint=hint,
    )


def _refuse_text(leaf: Leaf, given: Given) -> str:
    """Reject text that pydantic would convert by accident: `1` for a boolean, `5.0` for an integer."""
    if not isinstance(given.value, str):
        return ""
    if leaf.is_bool and given.value.lower() not in SWITCH_WORDS:
        return "must be true or false"
    if int in leaf.kinds and not _WHOLE_NUMBER.fullmatch(given.value.replace("_", "").strip()):
        return "must be a whole number"
    # Not a constraint of the type, because existing runs with such a name must still load their settings.
    if leaf.key == "model.name" and given.value and not any(character.isalpha() for character in given.value):
        return "must be the name of a model"
    return ""


def _validate(layer: Layer) -> tuple[dict[str, object], list[ErrorDetails]]:
    """Validate the sections that have values."""
    sections: dict[str, object] = {}
    errors: list[ErrorDetails] = []
    for name, said in _tree(layer).items():
        section = find_section(Settings.model_fields[name])
        try:
            if section is None:
                sections[name] = getattr(Settings.model_validate({name: said}), name)
            else:
                sections[name] = section.model_validate(said)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                each["loc"] = each["loc"] if section is None else (name, *each["loc"])
                errors.append(each)
    return sections, errors


def _tree(layer: Layer) -> Tree:
    """Nest the values by section, as the models expect them."""
    sections: dict[str, Tree] = {"": {}}
    for key, given in layer.items():
        prefix, _, name = key.rpartition(".")
        _section_of(prefix, sections)[name] = _typed(all_leaves()[key], given.value)
    return sections[""]


def _section_of(prefix: str, sections: dict[str, Tree]) -> Tree:
    if prefix not in sections:
        parent, _, name = prefix.rpartition(".")
        sections[prefix] = _section_of(parent, sections)[name] = {}
    return sections[prefix]


def _typed(leaf: Leaf, value: Plain) -> object:
    if leaf.is_bool and isinstance(value, str):
        return SWITCH_WORDS.get(value.lower(), value)
    return value


def _key_of(error: ErrorDetails) -> str:
    """Return the key of an error's setting, without positions in a list or a union."""
    key = ""
    for part in error["loc"]:
        key = f"{key}.{part}" if key else str(part)
        if key in all_leaves():
            return key
    raise AssertionError(f"An error without a setting: {error['loc']}")


def _describe(key: str, given: Given, error: ErrorDetails) -> Problem:
    leaf = all_leaves()[key]
    explained = explain(error, Settings)
    phrase, hint = explained.message, explained.hint
    if error["type"] == "string_pattern_mismatch":
        phrase = next((phrase for ending, phrase in _PATTERN_PHRASES.items() if key.endswith(ending)), phrase)
    elif error["type"] == "literal_error" and leaf.takes_list:
        phrase = f"must be a list or {join_words(leaf.words)}"
    if explained.code == "not_a_list":
        hint = "Write a list in brackets, separated by commas"
    path = error["loc"][key.count(".") + 1 :]
    if given.node is not None and path and isinstance(path[-1], int) and explained.code == "not_text":
        line = get_line(given.node, path[-1:])
        return Problem(
            severity="error", code="not_text", message=f"An item of {key} {phrase}", file=given.origin.file, line=line
        )
    return _build_problem(key, given, phrase, code=explained.code, hint=hint)


def _describe_pair(layer: Layer, error: ErrorDetails) -> Problem:
    """Describe two conflicting settings at the location of the one that the user set."""
    key = _key_of(error)
    other = f"{key.rpartition('.')[0]}.{error.get('ctx', {})['other']}"
    origin = (layer.get(key) or layer[other]).origin
    set_by = "" if origin.kind == "file" else f" (set by {origin.render()})"
    message = f"{key} {error['msg']}, not {quote(str(error['input']))}{set_by}"
    return Problem(severity="error", code="bad_value", message=message, file=origin.file, line=origin.line)
