"""Values of eval cases, triggers and checks. Code decides most checks; a sentence needs a judge."""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Literal, assert_never, get_args

from pydantic import AfterValidator, Field, JsonValue, model_validator

from metier.approval.matchers import BadPattern, compile_pattern
from metier.definitions.reader import BAD_VALUE, fault
from metier.values import Value

_PART = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+|\*)\]|\[['\"]([^'\"]+)['\"]\]")

type Step = str | int | None
"""One step of a JSON path: a name, a position, or None for every element."""


def parse_path(text: str) -> tuple[Step, ...]:
    """Parse a JSON path. Raises `ValueError`."""
    rest = text.strip().removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    steps: list[Step] = []
    position = 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            raise ValueError(f"{rest[position:][:20]!r} is neither a name nor an index")
        name, number, quoted = part.groups()
        steps.append(name or quoted or (None if number == "*" else int(number)))
        position = part.end()
    return tuple(steps)


def list_values(value: JsonValue, steps: Sequence[Step]) -> list[JsonValue]:
    """Return every value at a JSON path."""
    found = [value]
    for step in steps:
        found = [inner for outer in found for inner in _enter(outer, step)]
    return found


def _enter(value: JsonValue, step: Step) -> list[JsonValue]:
    match value, step:
        case dict(), str():
            return [value[step]] if step in value else []
        case dict(), None:
            return list(value.values())
        case list(), None:
            return value
        case list(), int():
            return [value[step]] if step < len(value) else []
        case _:
            return []


def anywhere(pattern: str) -> str:
    """Return an expression that matches a whole text with the pattern anywhere in it."""
    return f"(?s:.*)(?:{pattern})(?s:.*)"


def _check_pattern(pattern: str) -> str:
    try:
        compile_pattern(anywhere(pattern))
    except BadPattern as bad:
        hint = "Use RE2 syntax, without look-around"
        raise fault(BAD_VALUE, f"cannot be used: {bad}", hint) from bad
    return pattern


def _check_path(path: str) -> str:
    try:
        parse_path(path)
    except ValueError as error:
        raise fault(BAD_VALUE, f"cannot be used: {error}", "Example: '$.items[0].name'") from error
    return path


type Pattern = Annotated[str, Field(min_length=1), AfterValidator(_check_pattern)]
"""An RE2 expression, searched anywhere in the text."""


class Check(Value):
    """Common fields of all checks."""

    name: str = ""
    """Name in reports. Defaults to a description of the check."""


class Text(Check):
    """A check of the run's answer, or of a file in its workspace."""

    file: str = ""
    """Path relative to the workspace; empty for the answer."""
    negate: bool = False
    """Invert the check."""


class Contains(Text):
    check: Literal["contains"] = "contains"
    text: str = Field(min_length=1)
    ignore_case: bool = False


class Equals(Text):
    check: Literal["equals"] = "equals"
    text: str


class Matches(Text):
    check: Literal["matches"] = "matches"
    pattern: Pattern


class JsonSchema(Text):
    check: Literal["json_schema"] = "json_schema"
    schema_: dict[str, JsonValue] = Field(alias="schema")


class JsonPath(Text):
    """A check of the existence or the value of a JSON path."""

    check: Literal["json_path"] = "json_path"
    path: Annotated[str, AfterValidator(_check_path)]
    """Path such as `$.totals.files`, `$.items[0].name` or `$.items[*].name`."""
    equals: JsonValue = None
    contains: str = ""
    matches: Annotated[str, AfterValidator(_check_pattern)] = ""
    at_least: float | None = None
    at_most: float | None = None


class FileExists(Check):
    check: Literal["file_exists"] = "file_exists"
    path: str = Field(min_length=1)
    """Path relative to the workspace; `*` matches any part of a name."""
    negate: bool = False


class FileEquals(Check):
    check: Literal["file_equals"] = "file_equals"
    path: str = Field(min_length=1)
    text: str | None = None
    same_as: str = ""
    """A file next to the cases with the expected content."""

    @model_validator(mode="after")
    def _has_one(self) -> "FileEquals":
        if (self.text is None) == (not self.same_as):
            raise ValueError("it needs either 'text' or 'same_as'")
        return self


class FileMatches(Check):
    check: Literal["file_matches"] = "file_matches"
    path: str = Field(min_length=1)
    pattern: Pattern
    negate: bool = False


class ExitCode(Check):
    """A check of the exit code of `agent run` or, with `tool`, of the tool's last call."""

    check: Literal["exit_code"] = "exit_code"
    equals: int = 0
    tool: str = ""


class ToolCalled(Check):
    check: Literal["tool_called"] = "tool_called"
    tool: str = Field(min_length=1)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Value or matchers per argument, as in rules: `{startsWith: src/}`."""
    at_least: int = Field(default=1, ge=1)
    at_most: int | None = None


class ToolNotCalled(Check):
    check: Literal["tool_not_called"] = "tool_not_called"
    tool: str = Field(min_length=1)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class ToolOrder(Check):
    """A check that these tools were called in this order, possibly with others in between."""

    check: Literal["tool_order"] = "tool_order"
    tools: tuple[str, ...] = Field(min_length=1)


class SkillUsed(Check):
    check: Literal["skill_used"] = "skill_used"
    skill: str = Field(min_length=1)
    negate: bool = False


class MaxTurns(Check):
    check: Literal["max_turns"] = "max_turns"
    value: int = Field(ge=0)


class MaxCost(Check):
    check: Literal["max_cost"] = "max_cost"
    usd: float = Field(ge=0)


class MaxTokens(Check):
    check: Literal["max_tokens"] = "max_tokens"
    value: int = Field(ge=0)


class NoPolicyDenial(Check):
    check: Literal["no_policy_denial"] = "no_policy_denial"


class PythonCheck(Check):
    """A function of the pack, such as `checks.py:has_table`. It receives the evidence as an object."""

    check: Literal["python"] = "python"
    function: str = Field(pattern=r"^[^:]+\.py:[A-Za-z_]\w*$")


class Sentence(Check):
    """An expectation that only a judge can decide."""

    check: Literal["sentence"] = "sentence"
    text: str = Field(min_length=1)


type AnyCheck = (
    Contains
    | Equals
    | Matches
    | JsonSchema
    | JsonPath
    | FileExists
    | FileEquals
    | FileMatches
    | ExitCode
    | ToolCalled
    | ToolNotCalled
    | ToolOrder
    | SkillUsed
    | MaxTurns
    | MaxCost
    | MaxTokens
    | NoPolicyDenial
    | PythonCheck
    | Sentence
)

CHECK_TYPES: dict[str, type[AnyCheck]] = {
    each.model_fields["check"].default: each for each in get_args(AnyCheck.__value__)
}
"""Check classes by the value of `check`."""


def describe(check: AnyCheck) -> str:  # noqa: C901 - a table, one line per check
    """Describe a check in one line."""
    if check.name:
        return f"{check.check}: {check.name}"
    match check:
        case Contains() | Equals():
            return f"{check.check}{_where(check)}: {_not(check)}{_short(check.text)}"
        case Matches():
            return f"matches{_where(check)}: {_not(check)}{_short(check.pattern)}"
        case JsonSchema():
            return f"json_schema{_where(check)}"
        case JsonPath():
            return f"json_path{_where(check)}: {check.path}"
        case FileExists():
            return f"file_exists: {_not(check)}{check.path}"
        case FileEquals():
            return f"file_equals: {check.path}"
        case FileMatches():
            return f"file_matches {check.path}: {_not(check)}{_short(check.pattern)}"
        case ExitCode():
            return f"exit_code{f' of {check.tool}' if check.tool else ''}: {check.equals}"
        case ToolCalled() | ToolNotCalled():
            return f"{check.check}: {check.tool}{f' {_short(str(check.arguments))}' if check.arguments else ''}"
        case ToolOrder():
            return f"tool_order: {', '.join(check.tools)}"
        case SkillUsed():
            return f"skill_used: {_not(check)}{check.skill}"
        case MaxTurns() | MaxTokens():
            return f"{check.check}: {check.value}"
        case MaxCost():
            return f"max_cost: {check.usd:g} USD"
        case NoPolicyDenial():
            return "no_policy_denial"
        case PythonCheck():
            return f"python: {check.function}"
        case Sentence():
            return check.text
        case _:
            assert_never(check)


def _where(check: Text) -> str:
    return f" in {check.file}" if check.file else ""


def _not(check: Text | FileExists | FileMatches | SkillUsed) -> str:
    return "not " if check.negate else ""


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= 80 else f"{shown[:79]}…")


type TargetKind = Literal["skill", "agent", "task"]


class Commit(Value):
    """A commit in the history of a case."""

    message: str
    files: dict[str, str] = Field(default_factory=dict)
    tag: str = ""


class Setup(Value):
    """Initial state of a case's workspace."""

    files: dict[str, str] = Field(default_factory=dict)
    """Text by path."""
    git: Literal["", "init", "commit"] = ""
    """Create an empty repository, or one with all files committed."""
    commits: tuple[Commit, ...] = ()
    """History, committed before the files of the case are written."""


class Budget(Value):
    """Limits of one run."""

    max_turns: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)
    timeout_seconds: float | None = Field(default=None, gt=0)


class EvalCase(Value):
    id: str
    name: str = ""
    prompt: str
    """The user's request; for a task, its input."""
    expected_output: str = ""
    """Expected answer, for readers of the case. If there are no checks, a judge uses it."""
    files: tuple[str, ...] = ()
    """Files next to the cases or in the skill's folder. They are copied to the workspace's top level."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Inputs of a task."""
    setup: Setup = Setup()
    policy: str = ""
    """Rules in the format of `policy.yaml`. Defaults to those of the target."""
    profile: Literal["", "permissive", "guarded", "strict"] = ""
    approvals: Literal["approve", "deny", "wait"] = "approve"
    """Automatic answer to approval requests."""
    provider: str = ""
    """Model provider for recording and live runs. Defaults to that of the settings."""
    budget: Budget = Budget()
    checks: tuple[AnyCheck, ...] = ()
    line: int = 1

    @property
    def digest(self) -> str:
        """Digest of the run's input, without the expectations."""
        # Checks can change without a new recording, because they are applied to the recorded run again.
        given = self.model_dump_json(exclude={"checks", "expected_output", "name", "line", "budget", "provider"})
        return hashlib.sha256(given.encode()).hexdigest()


class Trigger(Value):
    """A request, and whether the skill should be chosen for it."""

    query: str
    should_trigger: bool
    file: str = ""
    line: int = 1


class EvalSet(Value):
    """The cases of one file."""

    file: str
    """Path for display."""
    kind: TargetKind = "skill"
    target: str
    """Name of the skill, or ID of the agent or task."""
    cases: tuple[EvalCase, ...] = ()
    triggers: tuple[Trigger, ...] = ()


class ScriptCase(Value):
    """A script call that a case describes, for `agent skill test`."""

    script: str
    args: tuple[str, ...]
    file: str
    number: int
