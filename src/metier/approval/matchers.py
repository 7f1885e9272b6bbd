"""The matchers of an argument, compiled from YAML: `equals`, `in`, `startsWith`, `matches`, `contains`, and so on.

Allow rules match narrowly, deny rules widely: the prefix `src` of an allow means the folder `src`; that of a deny means
every path that starts with these letters, in upper or lower case.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard, cast

import re2
from msgspec import Struct
from pydantic import JsonValue

from metier.approval.canonical import (
    canonical_path,
    canonical_text,
    climbs,
    decode_url,
    fold_path,
    kind_of,
    relative_path,
)
from metier.definitions.nearest import hint_nearest
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence
from metier.tools.shell.line import canonical_command

MAX_PATTERN_CHARACTERS = 1_000
MAX_MEMORY_BYTES = 1 << 20
"""Limit for the compiled expression and its matching. An expression that needs more is rejected when it is loaded."""

_REPEATED_REPETITION = re.compile(r"\((?:\?:)?(?:\\.|\[[^\]]+\]|[^\\()\[\]])[+*]\)(?:[+*]|\{\d+,\})")
_ATOMS = re.compile(r"\\.|\[\^?\]?[^\]]*\]")
_INNER = re.compile(r"\([^()]*\)")
_LITERALS = re.compile(r"\^?([A-Za-z0-9_/ -]*)")


class BadPattern(ValueError):
    """An expression cannot be used; the text says why."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Compile an expression to a test of a whole text. Raises `BadPattern`."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise BadPattern(f"it is longer than {MAX_PATTERN_CHARACTERS} characters")
    if found := _REPEATED_REPETITION.search(pattern):
        raise BadPattern(f"{found[0]!r} repeats a repetition")
    options: Any = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.log_errors = False  # RE2 would print errors of an expression to standard error
    try:
        compiled: Any = re2.compile(pattern, options)  # pyright: ignore[reportUnknownMemberType] - it has no types
    except re2.error as error:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        raise BadPattern(_reason(cast(Exception, error))) from error
    fullmatch = compiled.fullmatch
    start = get_literal_start(pattern)

    def test(text: str) -> bool:
        if not text.startswith(start):
            return False
        try:
            return fullmatch(text) is not None
        except UnicodeEncodeError:
            # RE2 reads UTF-8, which cannot represent a lone surrogate.
            return False

    return test


def get_literal_start(pattern: str) -> str:
    """Return the letters that every match starts with: comparing them is much cheaper than running RE2."""
    # With an alternative outside of groups, a match may start with other letters.
    if "|" in pattern and "|" in _INNER.sub("", _ATOMS.sub("", pattern)):
        return ""
    found = _LITERALS.match(pattern)
    literal = found[1] if found else ""
    following = pattern[found.end() : found.end() + 1] if found else ""
    # A quantifier may make the letter before it optional.
    return literal[:-1] if following in ("*", "?", "+", "{") and following else literal


def _reason(error: Exception) -> str:
    first: object = error.args[0] if error.args else ""
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first) or "it is not valid"


COMMAND = "command"
"""The argument with the command line of the shell."""
MATCHERS = ("equals", "in", "startsWith", "matches", "contains", "containsAll", "anyOf", "allOf")
EXACT = frozenset({"equals", "in"})

type Test = Callable[[JsonValue], bool]
type Report = Callable[[str, str, int, str], None]
"""Code, message, line, hint."""

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS: dict[str, JsonValue] = {"true": True, "false": False, "null": None, "~": None, "": None}


class MatcherPlace(Struct, frozen=True, kw_only=True):
    """The position of a matcher: its argument, its root, and the kind of its rule."""

    key: str
    root: str
    narrow: bool
    """The rule allows, so a doubtful value does not match."""
    report: Report


def build_matcher(node: Node, place: MatcherPlace) -> Test | None:
    """Build one test from a mapping of matchers, all of which must hold. Reports problems; None if there are any."""
    if not isinstance(node, Mapping) or not node.entries:
        message = f"What is demanded of {place.key!r} must be a matcher"
        place.report("not_a_matcher", message, node.line, "Write 'equals: …', or another of " + ", ".join(MATCHERS))
        return None
    tests = [_build(entry, place) for entry in node.entries]
    return _all_of([test for test in tests if test is not None]) if None not in tests else None


def list_operands(node: Node, matcher: str) -> Iterator[str]:
    """List the operands of a matcher, including those inside `anyOf` and `allOf`."""
    for entry in node.entries if isinstance(node, Mapping) else ():
        if entry.key == matcher and isinstance(entry.value, Scalar):
            yield entry.value.value
        elif entry.key in ("anyOf", "allOf") and isinstance(entry.value, Sequence):
            for item in entry.value.items:
                yield from list_operands(item, matcher)


def read_value(node: Node) -> JsonValue:
    """Convert YAML to JSON: an unquoted `1`, `true` or `null` is a number, a boolean or null; in quotes it is text."""
    match node:
        case Scalar(value=value, is_plain=True):
            if value in _WORDS:
                return _WORDS[value]
            return _read_number(value) if _NUMBER.fullmatch(value) else value
        case Scalar(value=value):
            return value
        case Sequence(items=items):
            return [read_value(item) for item in items]
        case Mapping(entries=entries):
            return {entry.key: read_value(entry.value) for entry in entries}


def is_same(left: JsonValue, right: JsonValue) -> bool:
    """Return True for equal JSON values: 1 equals 1.0 but neither `"1"` nor `true`."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right


def _read_number(text: str) -> JsonValue:
    return float(text) if any(character in text for character in ".eE") else int(text)


def _build(entry: Entry, place: MatcherPlace) -> Test | None:
    match entry.key:
        case "equals":
            value = _scalar(entry, place)
            return _is_in(_add_canonical(value, place), place) if value else None
        case "in":
            values = _scalars(entry, place)
            return _is_in(_add_canonical(values, place), place) if values is not None else None
        case "startsWith":
            text = _text(entry, place)
            return _consider_decoding(_starts_with(text, place), place) if text is not None else None
        case "matches":
            return _matches(entry, place)
        case "contains":
            value = _scalar(entry, place)
            return _consider_decoding(_contains(value[0], place), place) if value else None
        case "containsAll":
            values = _scalars(entry, place)
            if values is None:
                return None
            return _consider_decoding(_all_of([_contains(value, place) for value in values]), place)
        case "anyOf" | "allOf":
            return _combine(entry, place)
        case _:
            hint = hint_nearest(entry.key, MATCHERS) or f"Known are {', '.join(MATCHERS)}"
            place.report("unknown_matcher", f"Unknown matcher {entry.key!r}", entry.line, hint)
            return None


def _combine(entry: Entry, place: MatcherPlace) -> Test | None:
    if not isinstance(entry.value, Sequence) or not entry.value.items:
        place.report("not_a_list", f"Matcher {entry.key!r} needs a list of matchers", entry.line, "")
        return None
    tests = [build_matcher(item, place) for item in entry.value.items]
    usable = [test for test in tests if test is not None]
    if len(usable) < len(tests):
        return None
    return _all_of(usable) if entry.key == "allOf" else _any_of(usable)


def _all_of(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    return lambda value: all(test(value) for test in tests)


def _any_of(tests: list[Test]) -> Test:
    def try_each(value: JsonValue) -> bool:
        for test in tests:  # noqa: SIM110 - half the cost of `any` over a generator
            if test(value):
                return True
        return False

    return try_each


def _add_canonical(operands: Iterable[JsonValue], place: MatcherPlace) -> list[JsonValue]:
    """Add the canonical form of each command, because that is how the commands of a line are matched."""
    listed = list(operands)
    if place.key != COMMAND:
        return listed
    return [*listed, *(canonical_command(operand) for operand in listed if isinstance(operand, str))]


def _is_in(operands: list[JsonValue], place: MatcherPlace) -> Test:
    # A limit also matches a path that some file system takes for one of the operands.
    fold = fold_path if kind_of(place.key) == "path" and not place.narrow else str
    texts = frozenset(fold(operand) for operand in operands if isinstance(operand, str))
    others = [operand for operand in operands if not isinstance(operand, str)]
    return lambda value: (
        fold(value) in texts if isinstance(value, str) else any(is_same(value, operand) for operand in others)
    )


def _starts_with(operand: str, place: MatcherPlace) -> Test:
    if kind_of(place.key) == "path":
        return _starts_with_path(operand, place)
    if place.key == COMMAND and place.narrow:
        return _starts_with_words(canonical_command(operand))
    prefix = (
        canonical_text(operand, key="url", root="") if "://" in operand and not operand.endswith("://") else operand
    )
    if prefix is operand or not place.narrow or prefix.endswith("/"):
        return lambda value: isinstance(value, str) and value.startswith(prefix)
    size = len(prefix)
    # A URL prefix must end at the end of a path segment: `/docs` must not allow `/docs-private`.
    return lambda value: (
        isinstance(value, str) and value.startswith(prefix) and value[size : size + 1] in ("", "/", "?")
    )


def _starts_with_words(prefix: str) -> Test:
    """Match whole words: the prefix `git stat` does not match `git status`."""
    inside = prefix + " "
    return lambda value: isinstance(value, str) and (value == prefix or value.startswith(inside))


def _starts_with_path(operand: str, place: MatcherPlace) -> Test:
    path = canonical_path(operand, place.root)
    if not place.narrow:
        folded = fold_path(path)
        if not operand.endswith("/"):
            return lambda value: isinstance(value, str) and fold_path(value).startswith(folded)
        within = folded.rstrip("/") + "/"
        return lambda value: isinstance(value, str) and f"{fold_path(value)}/".startswith(within)
    inside = path.rstrip("/") + "/"
    return lambda value: isinstance(value, str) and (value == path or value.startswith(inside))


def _matches(entry: Entry, place: MatcherPlace) -> Test | None:
    pattern = _text(entry, place)
    if pattern is None:
        return None
    try:
        test = compile_pattern(pattern)
    except BadPattern as bad:
        message = f"Expression {pattern!r} cannot be used: {bad}"
        place.report("bad_pattern", message, entry.value.line, "The syntax is that of RE2, without look-around")
        return None
    return _consider_decoding(_any_form(test, place), place)


def _consider_decoding(test: Test, place: MatcherPlace) -> Test:
    """Consider that a server may decode `..%2f`: an allow rejects such a URL, and a deny also matches it decoded."""
    is_part = place.key.endswith(".path") and kind_of(place.key.removesuffix(".path")) == "url"

    def is_address(value: JsonValue) -> TypeGuard[str]:
        return isinstance(value, str) and (is_part or "://" in value)

    if place.narrow:
        return lambda value: test(value) and not (is_address(value) and climbs(value))
    return lambda value: (
        test(value) or (is_address(value) and (decoded := decode_url(value)) is not None and test(decoded))
    )


def _contains(operand: JsonValue, place: MatcherPlace) -> Test:
    item = canonical_text(operand, key=place.key, root=place.root) if isinstance(operand, str) else operand

    has_part = _any_form(lambda form: isinstance(operand, str) and operand in form, place)

    def test(value: JsonValue) -> bool:
        if isinstance(value, list):
            if isinstance(item, str):
                return item in value
            return any(is_same(element, item) for element in value)
        return has_part(value)

    return test


def _any_form(test: Callable[[str], bool], place: MatcherPlace) -> Test:
    """Try a path both absolute and relative to the root, because rules are written both ways."""
    if kind_of(place.key) != "path":
        return lambda value: isinstance(value, str) and test(value)
    root = place.root

    def try_both(value: JsonValue) -> bool:
        if not isinstance(value, str):
            return False
        relative = relative_path(value, root)
        if test(value) or test(relative):
            return True
        # Folding an expression could change its meaning, so only the path is folded.
        return not place.narrow and (test(fold_path(value)) or test(fold_path(relative)))

    return try_both


def _text(entry: Entry, place: MatcherPlace) -> str | None:
    # An empty prefix or expression would match every value.
    if isinstance(entry.value, Scalar) and entry.value.value:
        return entry.value.value
    place.report("not_text", f"Matcher {entry.key!r} needs a text", entry.line, "")
    return None


def _scalar(entry: Entry, place: MatcherPlace) -> tuple[JsonValue] | None:
    """Return the value in a tuple, because `null` is a value too."""
    if isinstance(entry.value, Scalar):
        return (_operand(entry.value, entry.key, place),)
    place.report("not_a_scalar", f"Matcher {entry.key!r} needs a single value", entry.line, "")
    return None


def _scalars(entry: Entry, place: MatcherPlace) -> list[JsonValue] | None:
    items = entry.value.items if isinstance(entry.value, Sequence) else ()
    if not items or not all(isinstance(item, Scalar) for item in items):
        place.report("not_a_list", f"Matcher {entry.key!r} needs a list of single values", entry.line, "")
        return None
    return [_operand(item, entry.key, place) for item in items]


def _operand(node: Node, matcher: str, place: MatcherPlace) -> JsonValue:
    value = read_value(node)
    if isinstance(value, str) and matcher in EXACT:
        return canonical_text(value, key=place.key, root=place.root)
    return value
