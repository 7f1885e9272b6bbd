"""The `evals/` folder of a skill: cases, triggers and script calls, as different tools write them. Runs nothing.

A file is a list of cases, or an object with the list under `evals`. A case has a request (`prompt`, or `query`) and
expectations. Whatever is not understood is a problem with file and line; nothing is dropped without one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from pydantic import JsonValue, ValidationError

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, Severity
from metier.errors import SkillError
from metier.evals.format.assertions import Unusable, list_values, map_assertion
from metier.evals.format.cases import AnyCheck, EvalCase, Fields, ScriptCase, Sentence, Trigger
from metier.skills.package import MAX_READ_BYTES, list_files, read_file

type KeyPath = tuple[str | int, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)

FOLDER = "evals"
MAIN_FILE = f"{FOLDER}/evals.json"
_LISTS = ("evals", "cases", "tests", "queries", "test_cases", "scenarios", "prompts")
_ASKED = ("prompt", "query", "question", "input", "task", "user_prompt")
ASSERTIONS = (
    "assertions", "expectations", "checks", "expect", "assert", "deterministic_assertions", "expectation", "rubric",
    "criteria", "success_criteria", "must", "graders", "expected_behaviors", "expected_behavior", "evaluation_criteria",
)  # fmt: skip
"""Fields whose elements are demands on the run."""
_EXPECTED = ("expected_output", "expected_outcome", "expected", "expected_result")
_OURS = ("inputs", "setup", "policy", "profile", "approvals", "provider", "budget")
_CALL = ("script", "args")
_NOTED = frozenset(
    {
        "id", "name", "title", "description", "category", "tags", "notes", "note", "difficulty", "metadata", "type",
        "case_set", "command", "role", "intent", "priority", "context", "files", "should_trigger", "reason", "version",
        "schema_version", "skill_name", "skill", "$schema", "author", "created", "updated", "source", "rationale",
        "why", "skills", "agent", "triggers",
    }
)  # fmt: skip
"""What people note beside a case and no check needs."""
_POSITIVE, _NEGATIVE = "should_trigger", ("should_not_trigger", "should_not")


class JsonLines:
    """Lines of the values in one text. Found when the first one is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: Mapping[KeyPath, int] | None = None

    def find(self, *path: str | int) -> int:
        """The line of a value; of what is around it where the path leads nowhere."""
        if self._lines is None:
            self._lines = get_lines(self._text)
        for length in range(len(path), -1, -1):
            if (line := self._lines.get(path[:length])) is not None:
                return line
        return 1


def get_lines(text: str) -> dict[KeyPath, int]:
    """The line of each value by its path. Of a key that is there twice the last one counts, as in the parsed value."""
    lines: dict[KeyPath, int] = {}
    stack: list[str | int] = []
    is_key_next = False
    position, line = 0, 1
    for token in _TOKEN.finditer(text):
        line += text.count("\n", position, token.start())
        position = token.start()
        word = token.group()
        match word:
            case "{":
                lines[tuple(stack)] = line
                stack.append("")
                is_key_next = True
            case "[":
                lines[tuple(stack)] = line
                stack.append(0)
                is_key_next = False
            case "}" | "]":
                if stack:
                    stack.pop()
                is_key_next = False
            case ",":
                if stack and isinstance(last := stack[-1], int):
                    stack[-1] = last + 1
                else:
                    is_key_next = True
            case ":":
                is_key_next = False
            case _ if is_key_next and stack:
                stack[-1] = _unescape(word)
            case _:
                lines[tuple(stack)] = line
    return lines


def _unescape(word: str) -> str:
    """Names of fields have no escapes in practice; one that has is found under its spelling in the file."""
    return word[1:-1] if word.startswith('"') else word


@dataclass(slots=True)
class EvalsReading:
    """What the folder holds."""

    cases: list[EvalCase] = field(default_factory=list[EvalCase])
    triggers: list[Trigger] = field(default_factory=list[Trigger])
    calls: list[ScriptCase] = field(default_factory=list[ScriptCase])
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def is_empty(self) -> bool:
        return not self.cases and not self.triggers


def read_evals(folder: Path, *, skill_name: str) -> EvalsReading:
    """Every JSON file directly in `evals/`. Only `evals.json` must hold cases; the others may hold anything."""
    reading = EvalsReading()
    paths = [file.path for file in list_files(folder) if file.path.startswith(f"{FOLDER}/")]
    for path in paths:
        if path.endswith(".json") and path.count("/") == 1:
            _read_file(folder, path, reading, skill_name=skill_name)
    return reading


def parse_evals(text: str, *, file: str, folder: Path | None = None, skill_name: str = "") -> EvalsReading:
    """The cases of one text. `folder` is the skill's, where the files of cases are looked for."""
    reading = EvalsReading()
    _read_text(text, CaseReader(file, JsonLines(text), reading, folder=folder, is_main=True), skill_name)
    return reading


def _read_file(folder: Path, path: str, reading: EvalsReading, *, skill_name: str) -> None:
    problem = ""
    data = b""
    try:
        data = read_file(folder, path)
    except SkillError as error:
        problem = error.message
    if problem:
        reading.problems.append(Problem(severity="error", code="evals_unreadable", message=problem, file=path))
    elif len(data) >= MAX_READ_BYTES:
        message = f"The file is larger than {MAX_READ_BYTES} bytes"
        reading.problems.append(Problem(severity="error", code="evals_too_large", message=message, file=path))
    else:
        text = data.decode("utf-8-sig", "replace")
        reader = CaseReader(path, JsonLines(text), reading, folder=folder, is_main=path == MAIN_FILE)
        _read_text(text, reader, skill_name)


def _read_text(text: str, reader: "CaseReader", skill_name: str) -> None:
    try:
        content = cast("JsonValue", json.loads(text))  # what a parser of JSON gives
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        reader.report("error", "evals_not_json", f"The file is not JSON: {error}", line=line)
        return
    reader.read(content, skill_name)


class Lines(Protocol):
    """Says where a value of a file stands."""

    def find(self, *path: str | int) -> int: ...


class CaseReader:
    """Reads the content of one file into a reading."""

    def __init__(
        self, path: str, lines: Lines, reading: EvalsReading, *, folder: Path | None = None, is_main: bool = False
    ) -> None:
        self.path = path
        self.reading = reading
        self.folder = folder
        self.is_main = is_main
        self.lines = lines
        self.at: tuple[str | int, ...] = ()
        """Where the list of cases stands."""

    def read(self, content: JsonValue, skill_name: str) -> None:
        if self._read_trigger_lists(content):
            return
        cases = self._find_cases(content)
        if cases is None:
            if self.is_main:
                hint = 'Write {"skill_name": …, "evals": [{"prompt": …, "expected_output": …}]}'
                self.report("error", "evals_shape", "There is no list of cases", hint=hint)
            return
        if not cases:
            self.report("warning", "evals_empty", "The list of cases is empty", hint="Add what people really ask for")
        self._check_top(content, skill_name)
        self._check_ids(cases)
        for number, case in enumerate(cases, start=1):
            self._read_case(number, case)

    def _read_trigger_lists(self, content: JsonValue) -> bool:
        """`{"should_trigger": […], "should_not_trigger": […]}`."""
        if not isinstance(content, dict) or not isinstance(content.get(_POSITIVE), list):
            return False
        for key in (_POSITIVE, *_NEGATIVE):
            for position, each in enumerate(list_values(content.get(key))):
                query = each if isinstance(each, str) else _find_asked(each) if isinstance(each, dict) else ""
                line = self.lines.find(key, position)
                if not query:
                    self.report("error", "evals_prompt", f"Query {position + 1} of {key!r} says nothing", line=line)
                    continue
                is_wanted = key == _POSITIVE
                self.reading.triggers.append(Trigger(query=query, should_trigger=is_wanted, file=self.path, line=line))
        return True

    def _find_cases(self, content: JsonValue) -> list[JsonValue] | None:
        if isinstance(content, list):
            return content
        if not isinstance(content, dict):
            return None
        for key in _LISTS:
            if isinstance(found := content.get(key), list):
                self.at = (key,)
                return found
        return [content] if any(key in content for key in _ASKED) else None

    def _check_top(self, content: JsonValue, skill_name: str) -> None:
        if not isinstance(content, dict) or not self.at:
            return
        named = content.get("skill_name")
        if skill_name and isinstance(named, str) and canonical_name(named) != canonical_name(skill_name):
            message = f"'skill_name' is {named!r}, the skill is called {skill_name!r}"
            self.report("warning", "evals_name", message, line=self.lines.find("skill_name"))
        for key in content:
            if key not in _NOTED and key not in self.at:
                message = f"Field {key!r} of the file is not used"
                self.report("warning", "evals_unknown", message, line=self.lines.find(key))

    def _check_ids(self, cases: list[JsonValue]) -> None:
        ids = [str(case["id"]) for case in cases if isinstance(case, dict) and "id" in case]
        for twice in sorted({id_ for id_ in ids if ids.count(id_) > 1}):
            self.report("warning", "evals_id", f"Two cases have the id {twice!r}")

    def _read_case(self, number: int, case: JsonValue) -> None:
        line = self.lines.find(*self.at, number - 1)
        if not isinstance(case, dict):
            self.report("error", "evals_case", f"Case {number} is not an object", line=line)
            return
        asked = _find_asked(case)
        if not asked:
            hint = "Add 'prompt' with what a person would write"
            self.report("error", "evals_prompt", f"Case {number} does not say what is asked", line=line, hint=hint)
        wanted = case.get(_POSITIVE)
        if asked and isinstance(wanted, bool):
            self.reading.triggers.append(Trigger(query=asked, should_trigger=wanted, file=self.path, line=line))
        is_trigger = isinstance(wanted, bool) and not any(key in case for key in (*ASSERTIONS, *_EXPECTED))
        if not is_trigger:
            self._build_case(number, case, asked=asked, line=line)
        self._check_fields(number, case)
        self._read_call(number, case)

    def _build_case(self, number: int, case: Fields, *, asked: str, line: int) -> None:
        checks = list(self._map_assertions(number, case))
        expected = next((text for key in _EXPECTED if (text := _render(case.get(key)))), "")
        if not checks and expected:
            checks = [Sentence(text=expected)]
        if not checks:
            hint = "Add 'expected_output' or 'assertions'"
            message = f"Case {number} does not say what is expected"
            self.report("warning", "evals_expected", message, line=line, hint=hint)
        names = [each for each in list_values(case.get("files")) if isinstance(each, str)]
        for file in self._list_missing(names):
            message = f"Case {number} names {file!r}, which is not in the skill"
            self.report("error", "evals_file", message, line=self.lines.find(*self.at, number - 1, "files"))
        if not asked:
            return
        given: Fields = {key: case[key] for key in _OURS if key in case}
        if isinstance(given.get("policy"), dict):
            given["policy"] = json.dumps(given["policy"])
        fields = {
            "id": str(case.get("id") or case.get("name") or number),
            "name": _render(case.get("name") or case.get("title")),
            "prompt": asked,
            "expected_output": expected,
            "files": tuple(names),
            "checks": tuple(checks),
            "line": line,
            **given,
        }
        try:
            self.reading.cases.append(EvalCase.model_validate(fields))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            self.report("error", "evals_field", f"Field {place!r} of case {number}: {first['msg']}", line=line)

    def _map_assertions(self, number: int, case: Fields) -> Iterator[AnyCheck]:
        for key in ASSERTIONS:
            for position, each in enumerate(list_values(case.get(key))):
                mapped = map_assertion(each)
                if not isinstance(mapped, Unusable):
                    yield mapped
                    continue
                line = self.lines.find(*self.at, number - 1, key, position)
                what = f"Element {position + 1} of {key!r} in case {number}"
                self.report("error", "evals_assertion", f"{what}: {mapped.message}", line=line, hint=mapped.hint)

    def _check_fields(self, number: int, case: Fields) -> None:
        known = {*_NOTED, *ASSERTIONS, *_EXPECTED, *_ASKED, *_OURS, *_CALL}
        for key in case:
            if key not in known:
                line = self.lines.find(*self.at, number - 1, key)
                self.report("warning", "evals_unknown", f"Field {key!r} of case {number} is not used", line=line)

    def _list_missing(self, names: list[str]) -> Iterator[str]:
        if self.folder is None:
            return
        for name in names:
            if find_case_file(self.folder, name) is None:
                yield name

    def _read_call(self, number: int, case: Fields) -> None:
        script, args = case.get("script"), case.get("args", [])
        if script is None:
            return
        words = args if isinstance(args, list) else None
        if not isinstance(script, str) or words is None or not all(isinstance(word, str) for word in words):
            message = f"Case {number} must have a text as 'script' and a list of texts as 'args'"
            self.report("error", "evals_call", message, line=self.lines.find(*self.at, number - 1, "script"))
            return
        call = ScriptCase(script=script, args=tuple(str(word) for word in words), file=self.path, number=number)
        self.reading.calls.append(call)

    def report(self, severity: Severity, code: str, message: str, *, line: int | None = None, hint: str = "") -> None:
        self.reading.problems.append(
            Problem(severity=severity, code=code, message=message, file=self.path, line=line, hint=hint)
        )


def find_case_file(folder: Path, name: str) -> str | None:
    """The path below the skill of a file that a case names, from the skill's folder or from `evals/`."""
    for path in (name, f"{FOLDER}/{name}"):
        try:
            read_file(folder, path)
        except SkillError:
            is_inside = ".." not in Path(path).parts and not Path(path).is_absolute()
            if not (is_inside and (folder / path).is_dir()):
                continue
        return path
    return None


def _find_asked(case: Fields) -> str:
    return next((text for key in _ASKED if (text := _render(case.get(key)))), "")


def _render(value: JsonValue) -> str:
    """A text as it is; what is no text as JSON, so that nothing of it is lost."""
    if isinstance(value, str):
        return value.strip()
    return "" if value in (None, [], {}) else json.dumps(value, ensure_ascii=False)
