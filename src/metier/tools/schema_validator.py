"""Validate values against foreign JSON Schemas in bounded work: RE2 for patterns, a step limit for everything else.

A schema can come from a request, a skill, an MCP server or a model, so it must not be able to block the process.
`jsonschema` matches with `re`, compares items pairwise, can take exponential time for `anyOf` and `$ref`, and repeats
whole values in its messages. Here every evaluation is charged to a meter. The limit is a number of steps and not a
time, because a replay must give the same result as the run.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast

import re2
from jsonschema import Draft202012Validator
from jsonschema.exceptions import (
    ValidationError,
    best_match,  # pyright: ignore[reportUnknownVariableType] - the stubs leave it open
)
from jsonschema.validators import extend  # pyright: ignore[reportUnknownVariableType]
from jsonschema_specifications import REGISTRY as SPECIFICATIONS
from pydantic import JsonValue
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

type Schema = dict[str, JsonValue]
type _Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

MAX_SCHEMA_CHARACTERS = 256_000
MAX_SCHEMA_DEPTH = 100
MAX_SCHEMA_STEPS = 1_000_000
"""Limit for checking a schema itself; a step takes about 2.5 µs."""
MAX_PATTERN_CHARACTERS = 4_000
_MAX_PATTERN_MEMORY_BYTES = 1 << 20
_MATCHES_PER_STEP = 300
"""Product of characters and instructions that RE2 matches in one step, in its slowest mode (8 ns each)."""
MAX_COMPILE_STEPS = 500_000
"""Limit for compiling all patterns of a schema when it is first checked."""
_STEPS_PER_PATTERN = 50
_INSTRUCTIONS_PER_STEP = 5
"""Instructions that RE2 compiles in one step. `\\pL` has 1,200; a pattern's memory has room for 50,000 (20 ms)."""
_CHARACTERS_PER_STEP = 200
"""For error messages, which repeat the value."""
_STEPS_PER_ERROR = 20
"""An error takes about 3 KB until the best one is chosen, so this bounds the memory."""

# Only after an even number of backslashes: in `\\u0041` the first one escapes the second.
_UNICODE_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u([0-9a-fA-F]{4})")
_END_OF_TEXT = re.compile(r"(?<!\\)((?:\\\\)*)\\Z")
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default", "examples"})
_LIBRARY_FAILURES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""A reference can point to a part that is not a schema; the library then fails in various ways."""


class BadPattern(ValueError):
    """A pattern cannot be used; the text says why."""


class _TooMuchWork(Exception):
    """The check has used up its steps."""


class _Meter:
    def __init__(self, steps: int) -> None:
        self.left = steps
        self.patterns: dict[str, _Pattern] = {}
        """The patterns that this check has been charged for, whether or not they were cached: replays must agree."""

    def charge(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _TooMuchWork


_meter: ContextVar[_Meter] = ContextVar("schema_meter")


class SchemaFault(NamedTuple):
    """A reason not to use a schema, and its place in it."""

    message: str
    path: tuple[str | int, ...] = ()


class Validation(NamedTuple):
    """The errors of a value, or the reason that it could not be checked."""

    errors: tuple[ValidationError, ...] = ()
    failure: str = ""


class _Pattern:
    """A compiled pattern that is searched in a text, as JSON Schema requires."""

    def __init__(self, text: str) -> None:
        """Raises `BadPattern`."""
        if len(text) > MAX_PATTERN_CHARACTERS:
            raise BadPattern(f"it has {len(text)} characters, at most {MAX_PATTERN_CHARACTERS} are allowed")
        options: Any = re2.Options()
        options.max_mem = _MAX_PATTERN_MEMORY_BYTES
        options.log_errors = False
        # RE2 has another syntax than JSON Schema for these: \x{00e9} for \u00e9, and \z for the end of the text.
        translated = _END_OF_TEXT.sub(r"\1\\z", _UNICODE_ESCAPE.sub(r"\1\\x{\2}", text))
        try:
            self._compiled: Any = re2.compile(translated, options)  # pyright: ignore[reportUnknownMemberType]
        except UnicodeEncodeError as error:
            raise BadPattern("it is not valid Unicode") from error
        except re2.error as error:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            raise BadPattern(_reason(cast(Exception, error))) from error
        self.size = cast(int, self._compiled.programsize)

    def search(self, text: str) -> bool:
        _meter.get().charge(2 + len(text) * self.size // _MATCHES_PER_STEP)
        try:
            return self._compiled.search(text) is not None
        except UnicodeEncodeError:  # a lone surrogate, which RE2 can't read
            return False


def compile_pattern(text: str) -> _Pattern:
    """Compile a pattern and charge the current check for it. Raises `BadPattern` if RE2 does not support it."""
    meter = _meter.get(None)
    if meter is None:
        return _compile(text)
    if text not in meter.patterns:
        meter.patterns[text] = _compile(text)
        meter.charge(_STEPS_PER_PATTERN + meter.patterns[text].size // _INSTRUCTIONS_PER_STEP)
    return meter.patterns[text]


@lru_cache(maxsize=256)
def _compile(text: str) -> _Pattern:
    return _Pattern(text)


class BoundedValidator:
    """The validator of one schema. Resolves references only inside the schema and fetches nothing."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._validator: Any = None

    def get_best_error(self, value: JsonValue, *, steps: int) -> Validation:
        """Return the most relevant error, if there is one."""

        def find() -> Validation:
            best = cast("ValidationError | None", best_match(self._iterate_errors(value)))
            return Validation((best,) if best is not None else ())

        return _bounded(find, steps)

    def list_errors(self, value: JsonValue, *, most: int, steps: int) -> Validation:
        """Return the first errors."""
        return _bounded(lambda: Validation(tuple(islice(self._iterate_errors(value), most))), steps)

    def _iterate_errors(self, value: JsonValue) -> Iterator[ValidationError]:
        if self._validator is None:
            # Built inside `_bounded`: a foreign schema can make this fail like a check.
            self._validator = _build_validator(self._schema)
        return cast("Iterator[ValidationError]", self._validator.iter_errors(value))


def find_schema_fault(schema: Schema) -> SchemaFault | None:
    """Return the first reason not to use this schema: its size, its form, a pattern."""
    try:
        size = len(json.dumps(schema))
    except RecursionError:
        return SchemaFault("it is nested too deeply")
    except (TypeError, ValueError) as error:
        return SchemaFault(str(error))
    if size > MAX_SCHEMA_CHARACTERS:
        return SchemaFault(f"it has {size} characters, at most {MAX_SCHEMA_CHARACTERS} are allowed")
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        return SchemaFault(f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    found = _get_meta_validator().list_errors(schema, most=1, steps=MAX_SCHEMA_STEPS)
    if found.failure:
        return SchemaFault(found.failure)
    if found.errors:
        return SchemaFault(found.errors[0].message, tuple(found.errors[0].absolute_path))
    try:
        with _metered(MAX_COMPILE_STEPS):
            return next(_list_pattern_faults(schema, ()), None)
    except _TooMuchWork:
        return SchemaFault(f"compiling its patterns takes more than {MAX_COMPILE_STEPS:,} steps; use simpler patterns")


@lru_cache(maxsize=1)
def _get_meta_validator() -> BoundedValidator:
    """Return the validator of schemas. Formats are not checked, because `format: regex` would compile with `re`."""
    return BoundedValidator(cast("Schema", Draft202012Validator.META_SCHEMA))


def _build_validator(schema: Schema) -> Any:
    """Build a validator with a crawled registry. Without it, the library crawls the schema again for each reference."""
    resource = DRAFT202012.create_resource(schema)
    uri = resource.id() or ""
    registry = SPECIFICATIONS.with_resource(uri, resource).crawl()
    return _ForeignSchemaValidator(schema, registry=registry, _resolver=registry.resolver(uri))


def _bounded(check: Callable[[], Validation], steps: int) -> Validation:
    try:
        with _metered(steps):
            return check()
    except Unresolvable as error:
        failure = f"its schema refers to {error.ref!r}, and only references inside the schema are followed"
    except RecursionError:
        failure = "it is nested too deeply"
    except _TooMuchWork:
        failure = f"the check takes more than {steps:,} steps; use a simpler schema or a smaller value"
    except BadPattern as error:
        failure = f"a pattern of its schema cannot be used: {error}"
    except _LIBRARY_FAILURES as error:
        failure = f"its schema cannot be used: {type(error).__name__}: {error}"
    return Validation(failure=failure)


@contextmanager
def _metered(steps: int) -> Generator[None]:
    # In a context variable, because keywords are called by the library and take no argument of ours.
    token = _meter.set(_Meter(steps))
    try:
        yield
    finally:
        _meter.reset(token)


def _is_deeper(value: JsonValue, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _list_pattern_faults(schema: JsonValue, path: tuple[str | int, ...]) -> Iterator[SchemaFault]:
    """Check the patterns of all keywords. Values such as those of `enum` are data and not checked."""
    if isinstance(schema, list):
        for index, each in enumerate(schema):
            yield from _list_pattern_faults(each, (*path, index))
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            yield from _check_pattern(value, (*path, key))
        elif key in _NAMED_SCHEMAS and isinstance(value, dict):
            for name, each in value.items():
                if key == "patternProperties":
                    yield from _check_pattern(name, (*path, key, name))
                yield from _list_pattern_faults(each, (*path, key, name))
        elif key not in _DATA:
            yield from _list_pattern_faults(value, (*path, key))


def _check_pattern(text: str, path: tuple[str | int, ...]) -> Iterator[SchemaFault]:
    try:
        compile_pattern(text)
    except BadPattern as error:
        shown = text if len(text) <= 100 else f"{text[:100]}…"
        why = "patterns are matched with RE2, which has no lookaround and no backreferences"
        yield SchemaFault(f"the pattern {shown!r} cannot be used: {error} ({why})", path)


def _reason(error: Exception) -> str:
    first: object = error.args[0] if error.args else ""
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first) or "it is not valid"


def _metering(keyword: _Keyword) -> _Keyword:
    """Wrap a keyword to charge it for the items that it iterates over and the errors that it reports."""

    def check(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        meter = _meter.get()
        meter.charge(1 + _count(wanted) + _count(instance))
        for error in keyword(validator, wanted, instance, schema) or ():
            meter.charge(_STEPS_PER_ERROR + len(error.message) // _CHARACTERS_PER_STEP)
            yield error

    return check


def _count(value: JsonValue) -> int:
    """Return the steps for a collection. Keywords iterate in C, hence the divisor."""
    return len(value) // 8 if isinstance(value, (list, dict)) else 0


def _count_nodes(value: JsonValue) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count_nodes, inner))


def _evolve(self: Any, **changes: Any) -> Any:
    """Keep this class. The library's method picks a class by a nested `$schema`, and that would match with `re`."""
    schema = changes.get("schema", self.schema)
    _meter.get().charge(1 + _count(schema))
    return type(self)(schema, registry=self._registry, _resolver=changes.get("_resolver", self._resolver))


def _check_text_pattern(_validator: Any, wanted: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not compile_pattern(wanted).search(instance):
        yield ValidationError(f"{instance!r} does not match {wanted!r}")


def _pattern_properties(validator: Any, wanted: Schema, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in wanted.items():
        compiled = compile_pattern(pattern)
        for name, value in cast("Schema", instance).items():
            if compiled.search(name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    given = cast("Schema", instance)
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [name for name in given if name not in known and not _matches_any(name, patterns)]
    if wanted is False and extras:
        verb = "was" if len(extras) == 1 else "were"
        shown = ", ".join(map(repr, extras))
        yield ValidationError(f"Additional properties are not allowed ({shown} {verb} unexpected)")
    elif isinstance(wanted, dict):
        for name in extras:
            yield from validator.descend(given[name], wanted, path=name)


def _matches_any(name: str, patterns: Schema) -> bool:
    return any(compile_pattern(pattern).search(name) for pattern in patterns)


def _enum(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Charge for the library's comparisons, which look at all nested values of lists and objects."""
    _meter.get().charge(_count_nodes(wanted) if isinstance(instance, (list, dict)) else len(wanted))
    yield from Draft202012Validator.VALIDATORS["enum"](validator, wanted, instance, schema)


def _const(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, (list, dict)):
        _meter.get().charge(_count_nodes(wanted))
    yield from Draft202012Validator.VALIDATORS["const"](validator, wanted, instance, schema)


def _unique_items(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Compare items by their JSON text, because the library compares all pairs. Hashes of text resist collisions."""
    if not wanted or not isinstance(instance, list):
        return
    items = cast("list[JsonValue]", instance)
    _meter.get().charge(_count_nodes(items))
    if len({json.dumps(_canonical(each), sort_keys=True) for each in items}) < len(items):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _canonical(value: JsonValue) -> JsonValue:
    """Convert whole floats to integers, because 1.0 equals 1 in JSON Schema."""
    if isinstance(value, dict):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unevaluated_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, list):
        return
    items = cast("list[JsonValue]", instance)
    evaluated = _list_evaluated(validator, items, schema)
    for index, item in enumerate(items):
        if index not in evaluated and next(validator.descend(item, wanted), None) is not None:
            yield ValidationError(f"Unevaluated items are not allowed ({item!r} was unexpected)")


def _unevaluated_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    given = cast("Schema", instance)
    evaluated = _list_evaluated(validator, given, schema)
    for name, value in given.items():
        if name not in evaluated and next(validator.descend(value, wanted), None) is not None:
            yield ValidationError(f"Unevaluated properties are not allowed ({name!r} was unexpected)")


def _list_evaluated(validator: Any, instance: Any, schema: Any) -> set[str | int]:
    """Return the names or indexes that other keywords of a schema, or of its in-place subschemas, have evaluated."""
    if not isinstance(schema, dict):
        return set()
    rules = cast("dict[str, Any]", schema)
    _meter.get().charge(1 + len(instance) + _count(rules))
    if isinstance(instance, list):
        found = _list_own_items(validator, cast("list[JsonValue]", instance), rules)
    else:
        found = _list_own_properties(validator, cast("Schema", instance), rules)
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in rules:
            resolved = validator._resolver.lookup(rules[keyword])  # noqa: SLF001 - as keywords of the library do
            target = validator.evolve(schema=resolved.contents, _resolver=resolved.resolver)
            found |= _list_evaluated(target, instance, resolved.contents)
    for subschema in _list_applied(validator, instance, rules):
        found |= _list_evaluated(validator, instance, subschema)
    return found


def _list_applied(validator: Any, instance: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """Yield the subschemas that apply to the same value and are satisfied."""
    for keyword in ("allOf", "oneOf", "anyOf"):
        for subschema in schema.get(keyword, ()):
            if next(validator.descend(instance, subschema), None) is None:
                yield subschema
    if "if" in schema:
        holds = next(validator.descend(instance, schema["if"]), None) is None
        yield from (schema["if"], schema.get("then")) if holds else (schema.get("else"),)
    for name, subschema in schema.get("dependentSchemas", {}).items():
        if name in instance:
            yield subschema


def _list_own_properties(validator: Any, instance: Schema, schema: dict[str, Any]) -> set[str | int]:
    patterns = schema.get("patternProperties", {})
    found: set[str | int] = {name for name in instance if name in schema.get("properties", {})}
    found |= {name for name in instance if name not in found and _matches_any(name, patterns)}
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema:
            for name, value in instance.items():
                if name not in found and next(validator.descend(value, schema[keyword]), None) is None:
                    found.add(name)
    return found


def _list_own_items(validator: Any, instance: list[JsonValue], schema: dict[str, Any]) -> set[str | int]:
    if "items" in schema:
        return set(range(len(instance)))
    found: set[str | int] = set(range(min(len(schema.get("prefixItems", ())), len(instance))))
    for keyword in ("contains", "unevaluatedItems"):
        if keyword in schema:
            for index, item in enumerate(instance):
                if index not in found and next(validator.descend(item, schema[keyword]), None) is None:
                    found.add(index)
    return found


_KEYWORDS: dict[str, _Keyword] = {
    **cast("dict[str, _Keyword]", Draft202012Validator.VALIDATORS),
    "pattern": _check_text_pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "enum": _enum,
    "const": _const,
    "uniqueItems": _unique_items,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
}
_ForeignSchemaValidator: Any = cast(Any, extend)(
    Draft202012Validator, {name: _metering(keyword) for name, keyword in _KEYWORDS.items()}
)
_ForeignSchemaValidator.evolve = _evolve
