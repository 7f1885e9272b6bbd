"""Cases, triggers and their checks as values: checks that code decides, and sentences that need a judge."""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Literal, assert_never, get_args

from pydantic import AfterValidator, Field, JsonValue, model_validator

from metier.approval.regex import BadPattern, compile_pattern
from metier.definitions.reader import BAD_VALUE, fault
from metier.messages import Value

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
            raise ValueError(f"{rest[position:][:20]!r} is neither a name nor a position")
        name, number, quoted = part.groups()
        steps.append(name or quoted or (None if number == "*" else int(number)))
        position = part.end()
    return tuple(steps)


def find_values(value: JsonValue, steps: Sequence[Step]) -> list[JsonValue]:
    """Every value that the path leads to; none where it leads nowhere."""
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
    """The expression for the whole text that holds the pattern somewhere."""
    return f"(?s:.*)(?:{pattern})(?s:.*)"


def _check_pattern(pattern: str) -> str:
    try:
        compile_pattern(anywhere(pattern))
    except BadPattern as bad:
        hint = "The syntax is that of RE2, without look-around"
        raise fault(BAD_VALUE, f"cannot be used: {bad}", hint) from bad
    return pattern


def _check_path(path: str) -> str:
    try:
        parse_path(path)
    except ValueError as error:
        raise fault(BAD_VALUE, f"cannot be used: {error}", "Such as '$.items[0].name'") from error
    return path


type Pattern = Annotated[str, Field(min_length=1), AfterValidator(_check_pattern)]
"""An RE2 expression, found anywhere in the text."""


class Check(Value):
    """What all checks have."""

    name: str = ""
    """What reports call it; without one it is described by what it demands."""


class Text(Check):
    """A demand on the answer of the run, or on a file that the run leaves."""

    file: str = ""
    """Relative to the workspace; empty for the answer."""
    negate: bool = False
    """It holds where the demand does not."""


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
    """The value at a place of a JSON text: that it is there, or what it is."""

    check: Literal["json_path"] = "json_path"
    path: Annotated[str, AfterValidator(_check_path)]
    """`$.totals.files`, `$.items[0].name`, `$.items[*].name`."""
    equals: JsonValue = None
    contains: str = ""
    matches: Annotated[str, AfterValidator(_check_pattern)] = ""
    at_least: float | None = None
    at_most: float | None = None


class FileExists(Check):
    check: Literal["file_exists"] = "file_exists"
    path: str = Field(min_length=1)
    """Relative to the workspace; `*` stands for any part of a name."""
    negate: bool = False


class FileEquals(Check):
    check: Literal["file_equals"] = "file_equals"
    path: str = Field(min_length=1)
    text: str | None = None
    same_as: str = ""
    """A file beside the cases that holds what is expected."""

    @model_validator(mode="after")
    def _has_one(self) -> "FileEquals":
        if (self.text is None) == (not self.same_as):
            raise ValueError("it needs 'text' or 'same_as', one of them")
        return self


class FileMatches(Check):
    check: Literal["file_matches"] = "file_matches"
    path: str = Field(min_length=1)
    pattern: Pattern
    negate: bool = False


class ExitCode(Check):
    """How the run ended, as `agent run` would say it; with `tool`, how the last call of a tool did."""

    check: Literal["exit_code"] = "exit_code"
    equals: int = 0
    tool: str = ""


class ToolCalled(Check):
    check: Literal["tool_called"] = "tool_called"
    tool: str = Field(min_length=1)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Of each named argument a value, or matchers as in rules: `{startsWith: src/}`."""
    at_least: int = Field(default=1, ge=1)
    at_most: int | None = None


class ToolNotCalled(Check):
    check: Literal["tool_not_called"] = "tool_not_called"
    tool: str = Field(min_length=1)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class ToolOrder(Check):
    """These tools were called in this order; others may stand between them."""

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
    """A function of the pack: `checks.py:has_table`. It gets the evidence as an object and says whether that holds."""

    check: Literal["python"] = "python"
    function: str = Field(pattern=r"^[^:]+\.py:[A-Za-z_]\w*$")


class Sentence(Check):
    """What only a reader can decide. Without a judge it is not checked."""

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
"""By the word after `check:`."""


def describe(check: AnyCheck) -> str:  # noqa: C901 - a table, one line per check
    """One line that names the check and what it demands."""
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
    """One commit of the history that a case begins with."""

    message: str
    files: dict[str, str] = Field(default_factory=dict)
    tag: str = ""


class Setup(Value):
    """What the folder of a case holds before the run."""

    files: dict[str, str] = Field(default_factory=dict)
    """Path → text."""
    git: Literal["", "init", "commit"] = ""
    """Whether the folder is a repository: with nothing in it, or with everything committed."""
    commits: tuple[Commit, ...] = ()
    """A history: one commit after the other, before the files of the case are written."""


class Budget(Value):
    """What one run of a case may take."""

    max_turns: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0)
    timeout_seconds: float | None = Field(default=None, gt=0)


class EvalCase(Value):
    id: str
    name: str = ""
    prompt: str
    """What a user asks; of a task, why it is run."""
    expected_output: str = ""
    """For people, and for a judge where nothing else is demanded."""
    files: tuple[str, ...] = ()
    """Beside the cases, or in the folder of the skill: they lie in the workspace of the run under their last names."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Of a task."""
    setup: Setup = Setup()
    policy: str = ""
    """The rules of the workspace, as text of a `policy.yaml`; empty for those that the target brings."""
    profile: Literal["", "permissive", "guarded", "strict"] = ""
    approvals: Literal["approve", "deny", "wait"] = "approve"
    """What is answered when a call needs an approval: there is no person to ask."""
    provider: str = ""
    """Who answers when it is recorded or run live; empty for the one of the settings."""
    budget: Budget = Budget()
    checks: tuple[AnyCheck, ...] = ()
    line: int = 1

    @property
    def digest(self) -> str:
        """Of everything that the run is given, and nothing of what is demanded of it."""
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
    """As it is shown."""
    kind: TargetKind = "skill"
    target: str
    """The name of the skill, or the ID of the agent or task."""
    cases: tuple[EvalCase, ...] = ()
    triggers: tuple[Trigger, ...] = ()


class ScriptCase(Value):
    """A call of a script that a case writes down; `agent skill test` makes it."""

    script: str
    args: tuple[str, ...]
    file: str
    number: int
