"""The reader of files that people write: a pydantic model defines the structure, and nodes provide the lines.

`read_yaml`, `read_json` and `read_front_matter` turn text into nodes that know their lines. The fields of a `FileModel`
have the types below, which turn nodes into values. `read_model` reports all problems of a mapping at once, each with
the line of its key or item:

    class Group(FileModel):
        matcher: Text = ""
        hooks: Items[Hook] = ()

    reading = read_model(Group, node, file="hooks.yaml")
"""

import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar, cast, get_args

from msgspec import Struct, field
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SkipValidation,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticUseDefault

from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, Severity, has_errors
from metier.definitions.text.yaml_text import (
    Mapping,
    Node,
    Plain,
    Scalar,
    Sequence,
    flat_texts,
    is_nothing,
    list_texts,
    plain_value,
)
from metier.telemetry.sanitize import sanitize

type KeyPath = tuple[str | int, ...]
type UnknownKeys = Literal["error", "warning", "ignore"]

BAD_VALUE = "bad_value"
UNKNOWN_KEY = "unknown_key"
SWITCH_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_QUOTED = re.compile("'([^']*)'")
T = TypeVar("T")


class _Finding(Struct, frozen=True):
    node: Node
    severity: Severity
    code: str
    message: str
    hint: str
    line: int | None


class Context(Struct, kw_only=True):
    """Options for reading a file, and the problems found so far. Validators get it as pydantic's `context`."""

    strict: bool = True
    """True if deviations are errors. Otherwise they are warnings, and the rest of the file is used."""
    unknown_keys: UnknownKeys = "error"
    findings: list[_Finding] = field(default_factory=list[_Finding])

    def report(  # noqa: PLR0917 - what a problem is made of
        self, severity: Severity, node: Node, code: str, message: str, hint: str = "", *, line: int | None = None
    ) -> None:
        """Report a problem of a value. `Field 'key'` is prepended to a message that starts in lower case."""
        self.findings.append(_Finding(node, severity, code, message, hint, line))

    def deviate(  # noqa: PLR0917 - what a problem is made of
        self, node: Node, code: str, message: str, hint: str = "", *, line: int | None = None
    ) -> None:
        """Report a deviation from the format that a lenient reader accepts."""
        self.report("error" if self.strict else "warning", node, code, message, hint, line=line)


class ModelReading[M](Struct, frozen=True):
    value: M | None
    """None if any problem is an error."""
    problems: tuple[Problem, ...] = ()
    draft: M | None = None
    """The valid parts of the value, even with errors."""


def context_of(info: ValidationInfo) -> Context:
    return cast("Context", info.context)  # `read_model` passes it


def fault(code: str, message: str, hint: str = "", *, key: str = "") -> PydanticCustomError:
    """Build an error for a validator to raise. The reader adds file and line. A model validator can name a `key`."""
    return PydanticCustomError("fault", "{message}", {"code": code, "message": message, "hint": hint, "key": key})


class FileModel(BaseModel):
    """Base of the models of files. A key without a value counts as absent."""

    # Built at the first use: most commands read only a few kinds of files.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, arbitrary_types_allowed=True)
    shape_hint: ClassVar[str] = ""
    """Hint for a value that should be a mapping."""

    @model_validator(mode="before")
    @classmethod
    def _open(cls, data: object, info: ValidationInfo) -> object:
        if isinstance(data, Scalar | Sequence):
            raise fault("not_a_mapping", "must be a mapping", cls.shape_hint)
        if not isinstance(data, Mapping):
            return data
        known = list_keys(cls)
        report_unknown_keys(data, known, context_of(info))
        return {entry.key: entry.value for entry in data.entries if entry.key in known and not is_nothing(entry.value)}


@cache
def list_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys of a model, in their order."""
    return tuple(each.alias or name for name, each in model.model_fields.items())


def report_unknown_keys(mapping: Mapping, known: Iterable[str], context: Context) -> None:
    """Report every unknown key, with the nearest known key as a hint."""
    known = tuple(known)
    if context.unknown_keys == "ignore":
        return
    for entry in mapping.entries:
        if entry.key not in known:
            message = f"Unknown key {entry.key!r}"
            context.report(context.unknown_keys, entry.value, UNKNOWN_KEY, message, _hint_key(entry.key, known))


def _hint_key(key: str, known: tuple[str, ...]) -> str:
    return hint_nearest(key, known) or f"Known keys: {', '.join(known)}"


def read_model[M: FileModel](
    model: type[M], node: Node, *, file: str, subject: str = "The file", context: Context | None = None
) -> ModelReading[M]:
    """Read a node into a model. Never raises; all problems are in `problems`, ordered by line.

    `subject` starts the message of a problem without a field.
    """
    return read_values(model, node, node, file=file, subject=subject, context=context)


def read_values[M: BaseModel](
    model: type[M], values: object, node: Node, *, file: str, subject: str = "", context: Context | None = None
) -> ModelReading[M]:
    """Read plain values into any pydantic model. `node` provides the lines for problems."""
    context = context or Context()
    errors: list[ErrorDetails] = []
    value: M | None = None
    try:
        value = model.model_validate(values, context=context)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    problems = list_problems(context, node, file=file)
    if has_errors(problems):
        # Model validators compare fields. Their messages mislead while one of these is invalid or misspelled.
        errors = [each for each in errors if each["type"] != "value_error" or each["loc"]]
    problems += [_describe(each, node, model, file=file, subject=subject) for each in errors]
    problems.sort(key=lambda problem: problem.line or 0)
    return ModelReading(None if has_errors(problems) else value, tuple(problems), value)


def list_problems(context: Context, root: Node, *, file: str) -> list[Problem]:
    """Convert the findings of a context to problems, with the keys and lines of the values below `root`."""
    if not context.findings:
        return []
    # By identity, because equal nodes can stand in several places.
    paths = {id(node): path for node, path in _walk(root, ())}
    return [
        Problem(
            severity=each.severity,
            code=each.code,
            message=_complete(each.message, paths.get(id(each.node), ())),
            file=file,
            line=each.line or get_line(root, paths.get(id(each.node), ())),
            hint=each.hint,
        )
        for each in context.findings
    ]


def _walk(node: Node, path: KeyPath) -> Iterator[tuple[Node, KeyPath]]:
    yield node, path
    match node:
        case Mapping(entries=entries):
            for entry in entries:
                yield from _walk(entry.value, (*path, entry.key))
        case Sequence(items=items):
            for index, item in enumerate(items):
                yield from _walk(item, (*path, index))
        case Scalar():
            return


def get_line(root: Node, path: Iterable[str | int]) -> int:
    """Return the line of the value at a path, or of its nearest existing parent."""
    node, line = root, root.line
    for part in path:
        if isinstance(node, Mapping) and (entry := node.find(str(part))):
            node, line = entry.value, entry.line
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            line = node.line
        else:
            break
    return line


class Explanation(NamedTuple):
    """A pydantic error in Metier's wording."""

    code: str
    message: str
    """The field's name is prepended if it starts in lower case."""
    hint: str = ""


def explain(error: ErrorDetails, model: type[BaseModel]) -> Explanation:
    context = error.get("ctx", {})
    key = str(error["loc"][-1]) if error["loc"] else ""
    match error["type"]:
        case "fault":
            return Explanation(context["code"], context["message"], context["hint"])
        case "missing":
            return Explanation(f"missing_{key}", "is missing")
        case "extra_forbidden":
            hint = _hint_key(key, list_keys(_get_model(model, error["loc"][:-1])))
            return Explanation(UNKNOWN_KEY, f"Unknown key {key!r}", hint)
        case "value_error":
            return Explanation(BAD_VALUE, str(context["error"]))
        case "literal_error":
            hint = hint_nearest(str(error["input"]), _QUOTED.findall(context["expected"]))
            return Explanation(BAD_VALUE, f"must be {context['expected']}", hint)
        case kind if kind in PHRASES:
            return Explanation(_CODES.get(kind, BAD_VALUE), PHRASES[kind].format_map(context))
        case _ if error["msg"][:1].islower():  # raised by a validator of ours
            return Explanation(BAD_VALUE, error["msg"])
        case _:
            return Explanation(BAD_VALUE, f"is invalid: {error['msg']}")


def _describe(error: ErrorDetails, root: Node, model: type[BaseModel], *, file: str, subject: str) -> Problem:
    blamed = error.get("ctx", {}).get("key")
    path = (*error["loc"], blamed) if blamed else error["loc"]
    explained = explain(error, model)
    message = explained.message + (f", not {error['input']!r}" if error["type"] == "literal_error" else "")
    return Problem(
        severity="error",
        code=explained.code,
        message=_complete(message, path, subject),
        file=file,
        line=get_line(root, path),
        hint=explained.hint,
    )


def _get_model(model: type[BaseModel], path: KeyPath) -> type[BaseModel]:
    """Return the model of the mapping at a path. Ambiguous types leave the model of the parent."""
    for part in path:
        field_ = next((each for name, each in model.model_fields.items() if part in (name, each.alias)), None)
        parts = (field_.annotation, *get_args(field_.annotation)) if field_ is not None else ()
        model = next((each for each in parts if isinstance(each, type) and issubclass(each, BaseModel)), model)
    return model


PHRASES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "model_type": "must be a mapping",
    "string_type": "must be text",
    "tuple_type": "must be a list",
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
"""Metier's wording of pydantic's error types."""
_CODES = {
    "dict_type": "not_a_mapping",
    "model_type": "not_a_mapping",
    "string_type": "not_text",
    "tuple_type": "not_a_list",
}


def _complete(message: str, path: KeyPath, subject: str = "") -> str:
    """Complete a message that starts with a verb: prepend the field or the subject."""
    if not message[:1].islower():
        return message
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    if not key:
        return f"{subject} {message}".strip()
    return f"An item of {key!r} {message}" if isinstance(path[-1], int) else f"Field {key!r} {message}"


def _read_text(value: object, info: ValidationInfo) -> object:
    """Read a single text. A list is joined with commas and reported."""
    match value:
        case Scalar(value=written):
            return show_text(value, written.strip(), context_of(info))
        case Sequence() | Mapping():
            context_of(info).deviate(value, "not_text", "must be text", "Write it as one value")
            joined = ", ".join(flat_texts(value))
            if not joined:
                raise PydanticUseDefault
            return show_text(value, joined, context_of(info))
        case _:
            return value


def show_text(node: Node, text: str, context: Context) -> str:
    """Escape and report hidden characters."""
    shown = sanitize(text)
    if shown != text:
        odd = next(char for char in text if sanitize(char) != char)
        message = f"holds hidden or control characters, first U+{ord(odd):04X}; they are made visible"
        context.report("warning", node, "hidden_characters", message, "Remove them")
    return shown


def _read_exact(value: object) -> object:
    match value:
        case Scalar(value=written):
            return written
        case Sequence() | Mapping():
            raise fault("not_text", "must be text", "Write it as one value")
        case _:
            return value


def _read_texts(value: object, info: ValidationInfo) -> object:
    """Read a list of texts. A single text is split at commas."""
    match value:
        case Scalar() | Sequence():
            return list_texts(value)
        case Mapping():
            context_of(info).deviate(value, "not_a_list", "must be a list")
            raise PydanticUseDefault
        case _:
            return value


def _read_items(value: object) -> object:
    match value:
        case Sequence(items=items):
            return items
        case Scalar() | Mapping():
            raise fault("not_a_list", "must be a list")
        case _:
            return value


def _read_entries(value: object) -> object:
    match value:
        case Mapping(entries=entries):
            return {entry.key: entry.value for entry in entries if not is_nothing(entry.value)}
        case Scalar() | Sequence():
            raise fault("not_a_mapping", "must be a mapping")
        case _:
            return value


def one_of(*words: str) -> BeforeValidator:
    """Read one of these words, in any case. A lenient reader falls back to the default."""

    def read(value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Scalar | Sequence | Mapping):
            return value
        written = value.value.strip() if isinstance(value, Scalar) else ", ".join(flat_texts(value))
        if written.lower() in words:
            return written.lower()
        message = f"must be {join_words(words)}, not {written!r}"
        context_of(info).deviate(value, BAD_VALUE, message, hint_nearest(written.lower(), words))
        raise PydanticUseDefault

    return BeforeValidator(read)


def some_of(*words: str) -> BeforeValidator:
    """Read a list of these words, in any case; `none` is an empty list. A lenient reader skips other words."""

    def read(value: object, info: ValidationInfo) -> object:
        texts = _read_texts(value, info)
        if not isinstance(value, Scalar | Sequence) or not isinstance(texts, tuple):
            return texts
        found: list[str] = []
        for text in cast("tuple[str, ...]", texts):
            if text.lower() in words:
                found.append(text.lower())
            elif text.lower() != "none":
                message = f"can have {join_words(words)}, not {text!r}"
                context_of(info).deviate(value, BAD_VALUE, message, hint_nearest(text.lower(), words))
        return tuple(dict.fromkeys(found))

    return BeforeValidator(read)


def within(low: float, high: float, *, whole: bool = False) -> BeforeValidator:
    """Read a number with bounds. A lenient reader clamps it."""

    def read(value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Scalar | Sequence | Mapping):
            return value
        try:
            number = float(value.value) if isinstance(value, Scalar) else math.nan
        except ValueError:
            number = math.nan
        # NaN, which `float` also reads from the text `nan`, fails every comparison.
        if not low <= number <= high or (whole and not number.is_integer()):
            kind = "whole number" if whole else "number"
            context_of(info).deviate(value, BAD_VALUE, f"must be a {kind} from {low:g} to {high:g}")
        if math.isnan(number):
            raise PydanticUseDefault
        number = min(max(number, low), high)
        return int(number) if whole else number

    return BeforeValidator(read)


def _read_flag(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, Scalar | Sequence | Mapping):
        return value
    written = value.value.strip().lower() if isinstance(value, Scalar) else ""
    if written not in SWITCH_WORDS:
        context_of(info).deviate(value, BAD_VALUE, "must be true or false")
        raise PydanticUseDefault
    return SWITCH_WORDS[written]


def join_words(words: Iterable[str]) -> str:
    """Return `'a', 'b' or 'c'`, formatted like pydantic's messages."""
    *first, last = map(repr, words)
    return f"{', '.join(first)} or {last}" if first else last


def _read_free(value: object) -> object:
    match value:
        case Mapping():
            return plain_value(value)
        case Scalar() | Sequence():
            raise fault("not_a_mapping", "must be a mapping")
        case _:
            return value


Flag = Annotated[bool, BeforeValidator(_read_flag)]
Word = Annotated[T, BeforeValidator(_read_text)]
"""A text that pydantic converts to another type, such as a literal or a number."""
Text = Annotated[str, BeforeValidator(_read_text)]
Exact = Annotated[str, BeforeValidator(_read_exact)]
"""A text exactly as written, for example a command."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_read_texts)]
Items = Annotated[tuple[T, ...], BeforeValidator(_read_items)]
Entries = Annotated[dict[str, T], BeforeValidator(_read_entries)]
"""A mapping with keys chosen by the author."""
FreeForm = Annotated[dict[str, Plain], BeforeValidator(_read_free)]
"""A mapping of texts, lists and mappings without a schema."""
Raw = Annotated[Node, SkipValidation]
"""The unparsed node, for a later reader."""
