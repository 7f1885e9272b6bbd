"""The `evals/` folder of a skill: are its cases well formed? Reads what different tools write; runs nothing.

A file is a list of cases, or an object with the list under `evals`. A case has what is asked (`prompt`, or `query`) and
what is expected. `script` and `args` in a case are ours: a call whose JSON answer `agent skill test` checks.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, Severity
from metier.errors import SkillError
from metier.skills.files import MAX_READ_BYTES, list_files, read_file

FOLDER = "evals"
MAIN_FILE = f"{FOLDER}/evals.json"
_LISTS = ("evals", "cases", "tests", "queries")
_ASKED = ("prompt", "query", "question", "input", "task")
_EXPECTED = (
    "expected_output",
    "expected_outcome",
    "expected_behavior",
    "expected",
    "expectations",
    "expectation",
    "assertions",
    "should_trigger",
    "criteria",
    "rubric",
)

type Case = dict[str, object]


@dataclass(frozen=True, slots=True)
class ScriptCase:
    """A call of a script that a case writes down."""

    script: str
    args: tuple[str, ...]
    file: str
    number: int


@dataclass(slots=True)
class EvalsReading:
    cases: int = 0
    calls: list[ScriptCase] = field(default_factory=list[ScriptCase])
    problems: list[Problem] = field(default_factory=list[Problem])


def read_evals(folder: Path, *, skill_name: str) -> EvalsReading:
    """Every JSON file directly in `evals/`. Only `evals.json` must hold cases; the others may hold anything."""
    reading = EvalsReading()
    paths = [file.path for file in list_files(folder) if file.path.startswith(f"{FOLDER}/")]
    for path in paths:
        if path.endswith(".json") and path.count("/") == 1:
            _FileCheck(folder, path, reading).check(skill_name)
    return reading


@dataclass(frozen=True, slots=True)
class _FileCheck:
    folder: Path
    path: str
    reading: EvalsReading

    def check(self, skill_name: str) -> None:
        content = self._load()
        if content is None:
            return
        cases = _find_cases(content)
        if cases is None:
            if self.path == MAIN_FILE:
                hint = 'Write {"skill_name": …, "evals": [{"prompt": …, "expected_output": …}]}'
                self._report("error", "evals_shape", "There is no list of cases", hint=hint)
            return
        if not cases:
            self._report("warning", "evals_empty", "The list of cases is empty", hint="Add what people really ask for")
        self._check_name(content, skill_name)
        self._check_ids(cases)
        for number, case in enumerate(cases, start=1):
            self._check_case(number, case)
        self.reading.cases += len(cases)

    def _load(self) -> object:
        try:
            data = read_file(self.folder, self.path)
        except SkillError as error:
            self._report("error", "evals_unreadable", error.message)
            return None
        if len(data) >= MAX_READ_BYTES:
            self._report("error", "evals_too_large", f"The file is larger than {MAX_READ_BYTES} bytes")
            return None
        try:
            return cast("object", json.loads(data.decode("utf-8-sig")))
        except (ValueError, RecursionError) as error:
            line = error.lineno if isinstance(error, json.JSONDecodeError) else None
            self._report("error", "evals_not_json", f"The file is not JSON: {error}", line=line)
            return None

    def _check_name(self, content: object, skill_name: str) -> None:
        named = cast("Case", content).get("skill_name") if isinstance(content, dict) else None
        if isinstance(named, str) and canonical_name(named) != canonical_name(skill_name):
            self._report("warning", "evals_name", f"'skill_name' is {named!r}, the skill is called {skill_name!r}")

    def _check_ids(self, cases: list[object]) -> None:
        ids = [str(cast("Case", case)["id"]) for case in cases if isinstance(case, dict) and "id" in case]
        for twice in sorted({id_ for id_ in ids if ids.count(id_) > 1}):
            self._report("warning", "evals_id", f"Two cases have the id {twice!r}")

    def _check_case(self, number: int, case: object) -> None:
        if not isinstance(case, dict):
            self._report("error", "evals_case", f"Case {number} is not an object")
            return
        fields = cast("Case", case)
        if not any(_has_text(fields.get(key)) for key in _ASKED):
            hint = "Add 'prompt' with what a person would write"
            self._report("error", "evals_prompt", f"Case {number} does not say what is asked", hint=hint)
        if not any(key in fields for key in _EXPECTED):
            hint = "Add 'expected_output' or 'assertions'"
            self._report("warning", "evals_expected", f"Case {number} does not say what is expected", hint=hint)
        for file in self._find_missing(fields.get("files")):
            self._report("error", "evals_file", f"Case {number} names {file!r}, which is not in the skill")
        self._read_call(number, fields)

    def _find_missing(self, files: object) -> Iterator[str]:
        names = cast("list[object]", files) if isinstance(files, list) else []
        for name in names:
            if isinstance(name, str) and not any(self._is_there(f"{start}{name}") for start in ("", f"{FOLDER}/")):
                yield name

    def _is_there(self, name: str) -> bool:
        try:
            read_file(self.folder, name)
        except SkillError:
            return (self.folder / name).is_dir() and ".." not in Path(name).parts and not Path(name).is_absolute()
        return True

    def _read_call(self, number: int, case: Case) -> None:
        script, args = case.get("script"), case.get("args", [])
        if script is None:
            return
        words = cast("list[object]", args) if isinstance(args, list) else None
        if not isinstance(script, str) or words is None or not all(isinstance(word, str) for word in words):
            message = f"Case {number} must have a text as 'script' and a list of texts as 'args'"
            self._report("error", "evals_call", message)
            return
        self.reading.calls.append(ScriptCase(script, tuple(str(word) for word in words), self.path, number))

    def _report(self, severity: Severity, code: str, message: str, *, line: int | None = None, hint: str = "") -> None:
        self.reading.problems.append(
            Problem(severity=severity, code=code, message=message, file=self.path, line=line, hint=hint)
        )


def _find_cases(content: object) -> list[object] | None:
    if isinstance(content, list):
        return cast("list[object]", content)
    if not isinstance(content, dict):
        return None
    fields = cast("Case", content)
    for key in _LISTS:
        if isinstance(fields.get(key), list):
            return cast("list[object]", fields[key])
    return [fields] if any(key in fields for key in _ASKED) else None


def _has_text(value: object) -> bool:
    return isinstance(value, (dict, list)) or (isinstance(value, str) and bool(value.strip()))
