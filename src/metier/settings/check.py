"""Give the text of a layer its types, and say in words what cannot be: who set it, what it must be, what it is."""

import re

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.settings.fields import Leaf, all_leaves, find_section
from metier.settings.model import Settings
from metier.settings.values import Given, Layer, quote

type Tree = dict[str, object]

_SWITCH_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

_TOGETHER = "together"
"""The type of an error that concerns two settings; only the merged layers can tell."""

_WHOLE_NUMBER = re.compile(r"[-+]?\d+")

_PHRASES = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt:g}",
    "string_too_short": "must not be empty",
    "string_unicode": "must be Unicode text",
}

_PATTERN_PHRASES = {
    "_env": "must be the name of an environment variable (letters, digits and _)",
    "_url": "must be an address that begins with http:// or https://",
    ".queue": "must be a name of letters, digits, - and _, 63 at most",
}


def check_alone(layer: Layer) -> list[Problem]:
    """Everything that is wrong with the values of one layer, whatever the others say."""
    problems: list[Problem] = []
    good: Layer = {}
    for key, given in layer.items():
        phrase = _refuse_text(all_leaves()[key], given)
        if phrase:
            problems.append(build_problem(key, given, phrase))
        else:
            good[key] = given
    errors: dict[str, ErrorDetails] = {}
    for error in _validate(good)[1]:
        # The members of a union each complain; the first says enough.
        if error["type"] != _TOGETHER:
            errors.setdefault(_key_of(error), error)
    problems.extend(_describe(key, layer[key], error) for key, error in errors.items())
    return problems


def check_together(layer: Layer) -> list[Problem]:
    """What is wrong between the values of the merged layers, each of them good on its own."""
    return [_describe_pair(layer, error) for error in _validate(layer)[1] if error["type"] == _TOGETHER]


def build_settings(layer: Layer) -> Settings:
    """The settings of layers that were checked."""
    sections, errors = _validate(layer)
    assert not errors, errors
    return Settings.model_construct(_fields_set=set(sections), **sections)


def build_problem(key: str, given: Given, phrase: str, *, hint: str = "") -> Problem:
    """A problem whose sentence begins with what the person wrote: a key in a file, a variable, a flag."""
    origin = given.origin
    subject = {"environment": f"Environment variable {origin.variable}", "flag": f"The flag for {key}"}
    value = given.value if isinstance(given.value, str) else ", ".join(given.value or ())
    return Problem(
        severity="error",
        code="bad_value",
        message=f"{subject.get(origin.kind, key)} {phrase}" + (f", not {quote(value)}" if value else ""),
        file=origin.file,
        line=origin.line,
        hint=hint,
    )


def _refuse_text(leaf: Leaf, given: Given) -> str:
    """What pydantic would let through although no user means it: `1` for a switch, `5.0` for a whole number."""
    if not isinstance(given.value, str):
        return ""
    if leaf.is_bool and given.value.lower() not in _SWITCH_WORDS:
        return "must be true or false"
    if int in leaf.kinds and not _WHOLE_NUMBER.fullmatch(given.value.replace("_", "").strip()):
        return "must be a whole number"
    # Not a constraint of the type: runs that were started with such a name must still load their settings.
    if leaf.key == "model.name" and given.value and not any(character.isalpha() for character in given.value):
        return "must be the name of a model"
    return ""


def _validate(layer: Layer) -> tuple[dict[str, object], list[ErrorDetails]]:
    """The sections that something is said about, and what is wrong with them."""
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
    """The nested form that the models read."""
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


def _typed(leaf: Leaf, value: str | tuple[str, ...] | None) -> object:
    if leaf.is_bool and isinstance(value, str):
        return _SWITCH_WORDS.get(value.lower(), value)
    return value


def _key_of(error: ErrorDetails) -> str:
    """The setting an error is about; the places inside a list or a union are cut off."""
    key = ""
    for part in error["loc"]:
        key = f"{key}.{part}" if key else str(part)
        if key in all_leaves():
            return key
    raise AssertionError(f"An error without a setting: {error['loc']}")


def _describe(key: str, given: Given, error: ErrorDetails) -> Problem:
    leaf = all_leaves()[key]
    hint = hint_nearest(given.value, leaf.words) if isinstance(given.value, str) else ""
    return build_problem(key, given, _phrase(leaf, error), hint=hint)


def _phrase(leaf: Leaf, error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        return f"must be one of {', '.join(repr(word) for word in leaf.words)}"
    if error["type"] == "string_pattern_mismatch":
        phrases = (phrase for ending, phrase in _PATTERN_PHRASES.items() if leaf.key.endswith(ending))
        return next(phrases, error["msg"])
    phrase = _PHRASES.get(error["type"])
    return phrase.format_map(error.get("ctx", {})) if phrase else error["msg"]


def _describe_pair(layer: Layer, error: ErrorDetails) -> Problem:
    """Two settings disagree: the place is that of the one the user set."""
    key = _key_of(error)
    other = f"{key.rpartition('.')[0]}.{error.get('ctx', {})['other']}"
    origin = (layer.get(key) or layer[other]).origin
    set_by = "" if origin.kind == "file" else f" (set by {origin.render()})"
    message = f"{key} {error['msg']}, not {quote(str(error['input']))}{set_by}"
    return Problem(severity="error", code="bad_value", message=message, file=origin.file, line=origin.line)
