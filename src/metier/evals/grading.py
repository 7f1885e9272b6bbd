"""Grades the evidence of a run by the checks of its case. Pure: the verdicts of check functions are passed in.

A sentence is `not_checked` until a judge decides about it; it never passes by default.
"""

import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import assert_never

from msgspec import Struct
from pydantic import JsonValue

from metier.approval.matchers import MATCHERS, BadPattern, MatcherPlace, Test, build_matcher, compile_pattern, is_same
from metier.context.json_text import NotJson, recover_object
from metier.definitions.names import canonical_name
from metier.definitions.text.yaml_text import read_yaml
from metier.errors import UsageError
from metier.evals import cases as c
from metier.evals.cases import anywhere, list_values, parse_path
from metier.evals.evidence import Call, Evidence, Verdict
from metier.tools.schemas import SchemaCheck
from metier.values import Value

_SHOWN = 200


class Grade(Value):
    """The verdict about one check, as results store it."""

    check: str
    """Kind of the check, such as `contains`."""
    text: str
    """Description of the check in one line."""
    verdict: Verdict
    evidence: str = ""
    """Observation that led to the verdict."""


class Found(Struct, frozen=True):
    """The outcome of a check, with the observation behind it."""

    holds: bool
    evidence: str


type PythonVerdicts = Callable[[c.PythonCheck], Found | None]
"""Returns the result of a check function, or None if it was not run."""
type SentenceVerdicts = Callable[[c.Sentence], Found | None]
type Expected = Callable[[str], str | None]
"""Returns the text of a file next to the cases."""


class Outside(Struct, frozen=True, kw_only=True):
    """Verdicts and files that grading itself can't compute or read."""

    python: PythonVerdicts = lambda _: None
    sentences: SentenceVerdicts = lambda _: None
    expected: Expected = lambda _: None


def grade(check: c.AnyCheck, evidence: Evidence, outside: Outside | None = None) -> Grade:
    """Return the verdict about one check."""
    around = outside or Outside()
    found = _evaluate(check, evidence, around)
    verdict: Verdict = "not_checked" if found is None else "passed" if found.holds else "failed"
    why = found.evidence if found is not None else _say_unchecked(check)
    return Grade(check=check.check, text=c.describe(check), verdict=verdict, evidence=why)


def grade_all(checks: Sequence[c.AnyCheck], evidence: Evidence, outside: Outside | None = None) -> tuple[Grade, ...]:
    return tuple(grade(check, evidence, outside) for check in checks)


def _say_unchecked(check: c.AnyCheck) -> str:
    return "No judge was used" if isinstance(check, c.Sentence) else "The function was not run"


def _evaluate(check: c.AnyCheck, evidence: Evidence, outside: Outside) -> Found | None:
    match check:
        case c.Sentence():
            return outside.sentences(check)
        case c.PythonCheck():
            return outside.python(check)
        case c.Contains() | c.Equals() | c.Matches() | c.JsonSchema() | c.JsonPath():
            return _evaluate_text(check, evidence)
        case c.FileExists() | c.FileEquals() | c.FileMatches():
            return _evaluate_file(check, evidence, outside)
        case c.ToolCalled() | c.ToolNotCalled() | c.ToolOrder():
            return _evaluate_calls(check, evidence.calls)
        case c.ExitCode() | c.SkillUsed() | c.MaxTurns() | c.MaxCost() | c.MaxTokens() | c.NoPolicyDenial():
            return _evaluate_run(check, evidence)
        case _:
            assert_never(check)


def _evaluate_text(check: c.Contains | c.Equals | c.Matches | c.JsonSchema | c.JsonPath, evidence: Evidence) -> Found:
    text = evidence.read(check.file) if check.file else evidence.result
    if text is None:
        return Found(check.negate, f"File {check.file!r} is missing")
    match check:
        case c.Contains():
            one, other = (text.casefold(), check.text.casefold()) if check.ignore_case else (text, check.text)
            holds = other in one
        case c.Equals():
            holds = text.strip() == check.text.strip()
        case c.Matches():
            holds = _matches(check.pattern, text)
        case c.JsonSchema():
            found = _evaluate_schema(check, text)
            return Found(found.holds != check.negate, found.evidence)
        case c.JsonPath():
            found = _evaluate_path(check, text)
            return Found(found.holds != check.negate, found.evidence)
        case _:
            assert_never(check)
    return Found(holds != check.negate, f"{check.file or 'The answer'} is {_short(text)}")


def _matches(pattern: str, text: str) -> bool:
    try:
        return compile_pattern(anywhere(pattern))(text)
    except BadPattern:  # rejected when the case was read
        return False


def read_json(text: str) -> JsonValue | NotJson:
    """Parse a text as JSON, or the object inside it."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return recover_object(text)
    return value


def _evaluate_schema(check: c.JsonSchema, text: str) -> Found:
    value = read_json(text)
    if isinstance(value, NotJson):
        return Found(holds=False, evidence=f"It is not JSON: {value.message}")
    try:
        error = SchemaCheck("json_schema", check.schema_).get_error(value)
    except UsageError as broken:
        return Found(holds=False, evidence=broken.message)
    return Found(not error, error or "It matches the schema")


def _evaluate_path(check: c.JsonPath, text: str) -> Found:
    value = read_json(text)
    if isinstance(value, NotJson):
        return Found(holds=False, evidence=f"It is not JSON: {value.message}")
    found = list_values(value, parse_path(check.path))
    if not found:
        return Found(holds=False, evidence=f"{check.path} leads nowhere")
    holds = any(_is_wanted(check, each) for each in found)
    return Found(holds, f"{check.path} is {_short(json.dumps(found[0] if len(found) == 1 else found))}")


def _is_wanted(check: c.JsonPath, value: JsonValue) -> bool:
    # Not by the value: `equals: null` is a check too.
    if "equals" in check.model_fields_set and not is_same(value, check.equals):
        return False
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if check.contains and check.contains not in text:
        return False
    if check.matches and not _matches(check.matches, text):
        return False
    # In Python a boolean is an `int`, but in JSON it is no number.
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if check.at_least is not None and (number is None or number < check.at_least):
        return False
    return check.at_most is None or (number is not None and number <= check.at_most)


def _evaluate_file(check: c.FileExists | c.FileEquals | c.FileMatches, evidence: Evidence, outside: Outside) -> Found:
    if isinstance(check, c.FileExists):
        wanted = check.path.removeprefix("./")
        found = sorted(path for path in evidence.files if path == wanted or fnmatchcase(path, wanted))
        return Found(bool(found) != check.negate, f"Found: {', '.join(found[:5])}" if found else "Not found")
    text = evidence.read(check.path)
    if text is None:
        there = ", ".join(sorted(evidence.files)[:5]) or "no file at all"
        return Found(holds=False, evidence=f"File {check.path!r} is missing; found: {there}")
    if isinstance(check, c.FileMatches):
        return Found(_matches(check.pattern, text) != check.negate, f"It is {_short(text)}")
    expected = check.text if check.text is not None else outside.expected(check.same_as)
    if expected is None:
        return Found(holds=False, evidence=f"The expected file {check.same_as!r} is missing")
    return Found(text == expected, "It is identical" if text == expected else _first_difference(text, expected))


def _first_difference(text: str, expected: str) -> str:
    found, wanted = text.splitlines(), expected.splitlines()
    for number in range(max(len(found), len(wanted))):
        here = found[number] if number < len(found) else None
        there = wanted[number] if number < len(wanted) else None
        if here != there:
            return f"Line {number + 1} is {_short(here or '')}, expected {_short(there or '')}"
    return "Only line endings differ"


def _evaluate_calls(check: c.ToolCalled | c.ToolNotCalled | c.ToolOrder, calls: Sequence[Call]) -> Found:
    made = f"Called: {', '.join(call.tool for call in calls) or 'nothing'}"
    if isinstance(check, c.ToolOrder):
        # `in` consumes an iterator up to the match, so each tool is searched behind the one before it.
        rest = iter([call.tool for call in calls if call.status != "rejected"])
        return Found(all(tool in rest for tool in check.tools), made)
    tests = _build_tests(check.arguments)
    if isinstance(tests, str):
        return Found(holds=False, evidence=tests)
    fitting = [
        call for call in calls if call.tool == check.tool and call.status != "rejected" and _fits(call.arguments, tests)
    ]
    if isinstance(check, c.ToolNotCalled):
        return Found(not fitting, made if not fitting else f"It was called with {_short(str(fitting[0].arguments))}")
    is_enough = len(fitting) >= check.at_least and (check.at_most is None or len(fitting) <= check.at_most)
    others = [str(call.arguments) for call in calls if call.tool == check.tool and call not in fitting]
    told = f"; with other arguments: {_short(others[0])}" if others and not fitting else ""
    return Found(is_enough, f"{made}{told}" if not fitting else f"It was called {len(fitting)} times")


def _build_tests(arguments: dict[str, JsonValue]) -> dict[str, Test] | str:
    """Build a test per argument, or return the problem of one of them."""
    tests: dict[str, Test] = {}
    wrong: list[str] = []
    for name, wanted in arguments.items():
        is_matcher = isinstance(wanted, dict) and bool(wanted) and wanted.keys() <= set(MATCHERS)
        # Matchers are read from YAML nodes, and JSON is YAML.
        node = read_yaml(json.dumps(wanted)).root if is_matcher else None
        # Without the argument's name, so that the matcher compares text instead of resolving paths or commands.
        place = MatcherPlace(
            key="", root="", narrow=True, report=lambda _code, message, _line, _hint: wrong.append(message)
        )
        test = build_matcher(node, place) if node is not None else _build_equal(wanted)
        if test is not None:
            tests[name] = test
    return f"Invalid arguments: {wrong[0]}" if wrong else tests


def _build_equal(wanted: JsonValue) -> Test:
    return lambda value: is_same(value, wanted)


def _fits(arguments: dict[str, JsonValue], tests: dict[str, Test]) -> bool:
    return all(name in arguments and test(arguments[name]) for name, test in tests.items())


def _evaluate_run(
    check: c.ExitCode | c.SkillUsed | c.MaxTurns | c.MaxCost | c.MaxTokens | c.NoPolicyDenial, evidence: Evidence
) -> Found:
    match check:
        case c.ExitCode():
            return _evaluate_exit(check, evidence)
        case c.SkillUsed():
            used = {canonical_name(name) for name in evidence.skills}
            told = f"Used: {', '.join(evidence.skills) or 'no skill'}"
            return Found((canonical_name(check.skill) in used) != check.negate, told)
        case c.MaxTurns():
            return Found(evidence.turns <= check.value, f"{evidence.turns} turns")
        case c.MaxCost():
            return Found(evidence.cost_usd <= check.usd, f"{evidence.cost_usd:.4f} USD")
        case c.MaxTokens():
            return Found(evidence.tokens <= check.value, f"{evidence.tokens} tokens")
        case c.NoPolicyDenial():
            return Found(not evidence.denials, evidence.denials[0] if evidence.denials else "Nothing was denied")
        case _:
            assert_never(check)


def _evaluate_exit(check: c.ExitCode, evidence: Evidence) -> Found:
    if not check.tool:
        told = f"The run is {evidence.status}: exit code {evidence.exit_code}"
        return Found(evidence.exit_code == check.equals, told)
    codes = [call.exit_code for call in evidence.calls if call.tool == check.tool]
    if not codes:
        return Found(holds=False, evidence=f"{check.tool!r} was not called")
    return Found(codes[-1] == check.equals, f"Its exit code is {codes[-1]}")


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…")
