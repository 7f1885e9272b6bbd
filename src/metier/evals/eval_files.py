"""Eval files: `evals/*.json` of a skill, in the formats of several tools, and `.agent/evals/*.yaml`. Runs nothing.

A file is a list of cases, or an object with the list under `evals`. A case has a request (`prompt` or `query`) and
expectations. Unknown content is reported with file and line.
`.agent/evals/*.yaml` has the same cases for the agents, tasks and skills of a workspace:

    agent: reviewer            # or task: ID, or skill: NAME
    cases:
      - id: small-change
        prompt: Review the change in src/
        setup: {files: {src/a.py: "x = 1\\n"}, git: commit}
        checks: [{check: tool_not_called, tool: Write}]
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.matchers import read_value
from metier.definitions.files.contained_path import read_contained
from metier.definitions.names import canonical_name
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, Severity
from metier.definitions.reader import BAD_VALUE, UNKNOWN_KEY, get_line, read_values
from metier.definitions.text.json_text import read_json
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence, read_yaml
from metier.errors import SkillError
from metier.evals.cases import CHECK_TYPES, AnyCheck, EvalCase, EvalSet, ScriptCase, Sentence, TargetKind, Trigger
from metier.skills.package import MAX_READ_BYTES, list_files, read_file

type Fields = dict[str, JsonValue]

FOLDER = "evals"
MAIN_FILE = f"{FOLDER}/evals.json"
WORKSPACE_FOLDER = ".agent/evals"
MAX_YAML_BYTES = 64 * 1024
_KINDS: tuple[TargetKind, ...] = ("skill", "agent", "task")
# These and the keys below occur in the eval files of public repositories; nearly all of them have `evals`.
_LISTS = ("evals", "cases", "tests", "queries", "test_cases", "scenarios", "prompts")
_ASKED = ("prompt", "query", "question", "input", "task", "user_prompt")
_ASSERTIONS = (
    "assertions", "expectations", "checks", "expect", "assert", "deterministic_assertions", "expectation", "rubric",
    "criteria", "success_criteria", "must", "graders", "expected_behaviors", "expected_behavior", "evaluation_criteria",
)  # fmt: skip
"""Keys of the lists of expectations."""
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
"""Known keys that have no effect."""
_KNOWN = frozenset({*_NOTED, *_ASSERTIONS, *_EXPECTED, *_ASKED, *_OURS, *_CALL})
_SUGGESTED = ("id", "name", "prompt", "files", "expected_output", "assertions", "checks", *_OURS, *_CALL)
_POSITIVE, _NEGATIVE = "should_trigger", ("should_not_trigger", "should_not")


_SENTENCE_KEYS = (
    "text", "description", "assertion", "expectation", "statement", "criterion", "criteria", "condition", "expected",
    "requirement", "question", "rubric", "prompt", "check", "title", "name", "value", "id",
)  # fmt: skip
"""Keys for the text of an expectation in other tools, most specific first."""
_OPERANDS = ("value", "pattern", "regex", "substring", "expected", "contains", "string", "target", "needle")
_PATHS = ("path", "file", "filename", "target", "value")
_TOOLS = ("tool", "tool_name", "value", "target")
_TEXT_KINDS: dict[str, tuple[str, bool]] = {
    "contains": ("contains", False),
    "includes": ("contains", False),
    "icontains": ("contains", False),
    "output_contains": ("contains", False),
    "text_contains": ("contains", False),
    "string_contains": ("contains", False),
    "substring": ("contains", False),
    "not_contains": ("contains", True),
    "excludes": ("contains", True),
    "not_includes": ("contains", True),
    "does_not_contain": ("contains", True),
    "equals": ("equals", False),
    "exact": ("equals", False),
    "exact_match": ("equals", False),
    "regex": ("matches", False),
    "regexp": ("matches", False),
    "matches": ("matches", False),
    "pattern": ("matches", False),
    "regex_match": ("matches", False),
    "output_matches": ("matches", False),
    "not_regex": ("matches", True),
    "not_matches": ("matches", True),
    "regex_absent": ("matches", True),
}
_FILE_KINDS = {"file_exists": False, "file_created": False, "output_file_exists": False, "file_not_exists": True}
_TOOL_KINDS = {
    "tool_called": "tool_called",
    "tool_used": "tool_called",
    "tool_call": "tool_called",
    "tool_not_called": "tool_not_called",
    "tool_not_used": "tool_not_called",
}


class EvalsReading(Struct):
    """The cases of one or more files, and their problems."""

    cases: list[EvalCase] = field(default_factory=list[EvalCase])
    triggers: list[Trigger] = field(default_factory=list[Trigger])
    calls: list[ScriptCase] = field(default_factory=list[ScriptCase])
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def is_empty(self) -> bool:
        return not self.cases and not self.triggers


def read_evals(folder: Path, *, skill_name: str) -> EvalsReading:
    """Read every JSON file directly in `evals/`. Only `evals.json` must contain cases."""
    reading = EvalsReading()
    paths = [file.path for file in list_files(folder) if file.path.startswith(f"{FOLDER}/")]
    for path in paths:
        if path.endswith(".json") and path.count("/") == 1:
            _read_file(folder, path, reading, skill_name=skill_name)
    return reading


def parse_evals(text: str, *, file: str, folder: Path | None = None, skill_name: str = "") -> EvalsReading:
    """Parse the cases of a text. `folder` is the skill's folder, in which cases name files."""
    reading = EvalsReading()
    _read_text(text, file, reading, folder=folder, skill_name=skill_name)
    return reading


def _read_file(folder: Path, path: str, reading: EvalsReading, *, skill_name: str) -> None:
    try:
        data = read_file(folder, path)
    except SkillError as error:
        reading.problems.append(_error("unreadable", error.message, path))
        return
    if len(data) >= MAX_READ_BYTES:
        message = f"The file is larger than {MAX_READ_BYTES} bytes"
        reading.problems.append(_error("file_too_large", message, path))
        return
    # Some editors on Windows start a file with a byte order mark.
    text = data.decode("utf-8-sig", "replace")
    _read_text(text, path, reading, folder=folder, skill_name=skill_name)


def _read_text(text: str, file: str, reading: EvalsReading, *, folder: Path | None, skill_name: str) -> None:
    document = read_json(text, file=file)
    if document.root is None:
        reading.problems += document.problems
    elif _CaseReader(file, document.root, reading, folder=folder).read(skill_name):
        # Another tool may have written the file, so a repeated key does not make it unusable.
        reading.problems += [replace(each, severity="warning") for each in document.problems]
    elif file == MAIN_FILE:
        hint = 'Write {"skill_name": …, "evals": [{"prompt": …, "expected_output": …}]}'
        reading.problems.append(_error("evals_shape", "The file has no list of cases", file, 1, hint=hint))


class YamlSets(NamedTuple):
    sets: tuple[EvalSet, ...]
    problems: tuple[Problem, ...]


def load_yaml_sets(workspace: Path) -> YamlSets:
    """Read every eval file of the workspace, sorted by name."""
    sets: list[EvalSet] = []
    problems: list[Problem] = []
    for file in sorted((workspace / WORKSPACE_FOLDER).glob("*.y*ml")):
        shown = file.relative_to(workspace).as_posix()
        try:
            text = read_contained(file, within=workspace, limit=MAX_YAML_BYTES).decode("utf-8-sig", "replace")
        except OSError as error:
            problems.append(_error("unreadable", f"The file cannot be read: {error.strerror}", shown))
            continue
        found = parse_yaml_set(text, file=shown, folder=file.parent)
        sets += [found.eval_set] if found.eval_set is not None else []
        problems += found.problems
    return YamlSets(tuple(sets), tuple(problems))


class ParsedSet(NamedTuple):
    eval_set: EvalSet | None
    problems: tuple[Problem, ...]


def parse_yaml_set(text: str, *, file: str, folder: Path | None = None) -> ParsedSet:
    """Parse the cases of a text. Without a target, the set is None."""
    document = read_yaml(text, file=file)
    root = document.root
    if not isinstance(root, Mapping):
        return ParsedSet(None, document.problems or (_report_target(file, 1),))
    named: list[tuple[TargetKind, Entry]] = [(each, entry) for each in _KINDS if (entry := root.find(each)) is not None]
    if len(named) != 1 or not isinstance(target := read_value(named[0][1].value), str):
        keys = [entry.key for entry in root.entries]
        hint = next((hint for key in keys if (hint := hint_nearest(key, _KINDS))), "")
        return ParsedSet(None, (*document.problems, _report_target(file, root.line, hint)))
    kind, entry = named[0]
    reading = EvalsReading(problems=list(document.problems))
    rest = Mapping(tuple(each for each in root.entries if each is not entry), root.line)
    if not _CaseReader(file, rest, reading, folder=folder).read():
        reading.problems.append(_error("evals_shape", "The file has no list of cases", file, 1, hint="Write 'cases:'"))
    eval_set = EvalSet(
        file=file, kind=kind, target=target, cases=tuple(reading.cases), triggers=tuple(reading.triggers)
    )
    return ParsedSet(eval_set, tuple(reading.problems))


def _report_target(file: str, line: int, hint: str = "") -> Problem:
    hint = hint or "Start with one of 'agent: ID', 'task: ID' and 'skill: NAME'"
    return _error("evals_target", "The file does not name its target", file, line, hint=hint)


def _error(code: str, message: str, file: str, line: int | None = None, *, hint: str = "") -> Problem:  # noqa: PLR0917
    return Problem(severity="error", code=code, message=message, file=file, line=line, hint=hint)


class _CaseReader:
    """Reads the cases of one file into a reading."""

    def __init__(self, file: str, root: Node, reading: EvalsReading, *, folder: Path | None) -> None:
        self._file = file
        self._root = root
        self._reading = reading
        self._folder = folder

    def read(self, skill_name: str = "") -> bool:
        """Return False for a file without cases."""
        if self._read_trigger_lists():
            return True
        found = self._find_cases()
        if found is None:
            return False
        key, cases = found
        if not cases:
            self._report(
                "warning", "evals_empty", "The list of cases is empty", hint="Add requests that users really make"
            )
        if key and isinstance(self._root, Mapping):
            self._check_top(self._root, key, skill_name)
        self._check_ids(cases)
        for number, case in enumerate(cases, start=1):
            if isinstance(case, Mapping):
                self._read_case(number, case)
            else:
                self._report("error", "not_a_mapping", f"Case {number} must be a mapping", case.line)
        return True

    def _read_trigger_lists(self) -> bool:
        """Read `{"should_trigger": […], "should_not_trigger": […]}`."""
        if not isinstance(self._root, Mapping) or not isinstance(self._root.find_value(_POSITIVE), Sequence):
            return False
        for key in (_POSITIVE, *_NEGATIVE):
            for position, each in enumerate(_list_items(self._root.find_value(key)), start=1):
                query = each.value if isinstance(each, Scalar) else _get_prompt(each)
                if query:
                    self._add_trigger(query, each.line, is_wanted=key == _POSITIVE)
                else:
                    self._report("error", "missing_prompt", f"Query {position} of {key!r} is empty", each.line)
        return True

    def _add_trigger(self, query: str, line: int, *, is_wanted: bool) -> None:
        self._reading.triggers.append(Trigger(query=query, should_trigger=is_wanted, file=self._file, line=line))

    def _find_cases(self) -> tuple[str, tuple[Node, ...]] | None:
        """Find the cases and the key of their list. The key is empty for a list or a single case."""
        if isinstance(self._root, Sequence):
            return "", self._root.items
        if not isinstance(self._root, Mapping):
            return None
        for key in _LISTS:
            if isinstance(found := self._root.find_value(key), Sequence):
                return key, found.items
        return ("", (self._root,)) if any(self._root.find(key) for key in _ASKED) else None

    def _check_top(self, root: Mapping, key: str, skill_name: str) -> None:
        named = root.find_value("skill_name")
        written = named.value if isinstance(named, Scalar) else ""
        if skill_name and written and canonical_name(written) != canonical_name(skill_name):
            message = f"'skill_name' is {written!r}, the skill is called {skill_name!r}"
            self._report("warning", "evals_name", message, get_line(root, ("skill_name",)))
        self._check_keys(root, _NOTED | {key}, _LISTS)

    def _check_ids(self, cases: tuple[Node, ...]) -> None:
        ids = [str(read_value(node)) for case in cases if isinstance(case, Mapping) and (node := case.find_value("id"))]
        for twice in sorted({id_ for id_ in ids if ids.count(id_) > 1}):
            self._report("warning", "evals_id", f"Two cases have the ID {twice!r}")

    def _read_case(self, number: int, case: Mapping) -> None:
        asked = _get_prompt(case)
        if not asked:
            hint = "Add 'prompt' with the user's request"
            self._report("error", "missing_prompt", f"Case {number} has no prompt", case.line, hint=hint)
        wanted = case.find_value(_POSITIVE)
        is_wanted = read_value(wanted) if wanted is not None else None
        if asked and isinstance(is_wanted, bool):
            self._add_trigger(asked, case.line, is_wanted=is_wanted)
        is_trigger = isinstance(is_wanted, bool) and not any(case.find(key) for key in (*_ASSERTIONS, *_EXPECTED))
        if not is_trigger:
            self._build_case(number, case, asked=asked)
        self._check_keys(case, _KNOWN, _SUGGESTED)
        self._read_call(number, case)

    def _build_case(self, number: int, case: Mapping, *, asked: str) -> None:
        checks = list(self._read_assertions(case))
        values = _as_object(case)
        expected = next((text for key in _EXPECTED if (text := _render(values.get(key)))), "")
        if not checks and expected:
            checks = [Sentence(text=expected)]
        if not checks and not any(_list_items(case.find_value(key)) for key in _ASSERTIONS):
            hint = "Add 'expected_output' or 'assertions'"
            message = f"Case {number} has no expectations"
            self._report("warning", "evals_expected", message, case.line, hint=hint)
        names = [each.value for each in _list_items(case.find_value("files")) if isinstance(each, Scalar)]
        for file in names:
            if self._folder is not None and find_case_file(self._folder, file) is None:
                message = f"Case {number} lists {file!r}, but the skill has no such file"
                self._report("error", "evals_file", message, get_line(case, ("files",)))
        if not asked:
            return
        given: Fields = {key: values[key] for key in _OURS if key in values}
        if isinstance(given.get("policy"), dict):
            # Rules may be part of the case; as JSON they are still YAML for their reader.
            given["policy"] = json.dumps(given["policy"])
        fields = {
            "id": str(values.get("id") or values.get("name") or number),
            "name": _render(values.get("name") or values.get("title")),
            "prompt": asked,
            "expected_output": expected,
            "files": tuple(names),
            "checks": tuple(checks),
            "line": case.line,
            **given,
        }
        read = read_values(EvalCase, fields, case, file=self._file)
        self._reading.problems += read.problems
        self._reading.cases += [read.value] if read.value is not None else []

    def _read_assertions(self, case: Mapping) -> Iterator[AnyCheck]:
        for key in _ASSERTIONS:
            for each in _list_items(case.find_value(key)):
                read = read_assertion(each, file=self._file)
                if isinstance(read, tuple):
                    self._reading.problems += read
                else:
                    yield read

    def _check_keys(self, mapping: Mapping, known: frozenset[str], suggested: tuple[str, ...]) -> None:
        for entry in mapping.entries:
            if entry.key not in known:
                hint = hint_nearest(entry.key, suggested)
                self._report("warning", UNKNOWN_KEY, f"Unknown key {entry.key!r}", entry.line, hint=hint)

    def _read_call(self, number: int, case: Mapping) -> None:
        fields = {key: case.find_value(key) for key in _CALL}
        if fields["script"] is None:
            return
        script, args = fields["script"], _list_items(fields["args"])
        words = [each.value for each in args if _is_text(each)]
        if not _is_text(script) or len(words) < len(args):
            message = f"Case {number} needs a string as 'script' and a list of strings as 'args'"
            self._report("error", BAD_VALUE, message, get_line(case, ("script",)))
            return
        call = ScriptCase(script=script.value, args=tuple(words), file=self._file, number=number)
        self._reading.calls.append(call)

    def _report(  # noqa: PLR0917 - what a problem is made of
        self, severity: Severity, code: str, message: str, line: int | None = None, *, hint: str = ""
    ) -> None:
        problem = Problem(severity=severity, code=code, message=message, file=self._file, line=line, hint=hint)
        self._reading.problems.append(problem)


def find_case_file(folder: Path, name: str) -> str | None:
    """Find a file that a case names, relative to the skill's folder or to `evals/`."""
    for path in (name, f"{FOLDER}/{name}"):
        try:
            read_file(folder, path)
        except SkillError:
            is_inside = ".." not in Path(path).parts and not Path(path).is_absolute()
            if not (is_inside and (folder / path).is_dir()):
                continue
        return path
    return None


def read_assertion(node: Node, *, file: str) -> AnyCheck | tuple[Problem, ...]:
    """Read an element of `assertions`, `expectations` or a similar list.

    A wrong check is worse than none, so an object must have an expected value to become a check. An object that is
    neither a check nor a sentence is reported.
    """
    value = read_value(node)
    if isinstance(value, str) and value.strip():
        return Sentence(text=value.strip())
    if not isinstance(value, dict):
        hint = "Write a sentence, or an object with 'check'"
        return (_error("evals_assertion", "An assertion must be a sentence or an object", file, node.line, hint=hint),)
    named = value.get("check")
    fields = value if isinstance(named, str) and named in CHECK_TYPES else _translate(value)
    if fields is not None:
        read = read_values(CHECK_TYPES[str(fields["check"])], fields, node, file=file)
        return read.value or read.problems
    # A single word is a misspelled check, several words are a sentence.
    if isinstance(named, str) and len(named.split()) == 1 and not _get_sentence(value, but="check"):
        hint = hint_nearest(named, CHECK_TYPES) or f"Known checks: {', '.join(CHECK_TYPES)}"
        return (_error("evals_assertion", f"Unknown check {named!r}", file, node.line, hint=hint),)
    if text := _get_sentence(value):
        return Sentence(text=text)
    hint = "Add 'text' with a sentence, or 'check' with its fields"
    return (_error("evals_assertion", "An assertion has neither 'text' nor 'check'", file, node.line, hint=hint),)


def _translate(value: Fields) -> Fields | None:
    """Translate another tool's object to the fields of a check. Return None for a mere description."""
    kind = str(value.get("type") or value.get("kind") or value.get("method") or "").lower().replace("-", "_")
    name = _get_sentence(value, but="check") if "name" not in value else str(value["name"])
    label: Fields = {"name": name[:200]}
    if kind in _TEXT_KINDS or (not kind and isinstance(value.get("pattern"), str)):
        check, negate = _TEXT_KINDS.get(kind, ("matches", False))
        operand = _find_text(value, _OPERANDS)
        if operand is None:
            return None
        key = "pattern" if check == "matches" else "text"
        file = value.get("file") or value.get("path")
        built: Fields = {"check": check, key: operand, "negate": negate, **label}
        if check == "contains":
            built["ignore_case"] = kind == "icontains"
        return {**built, "file": file} if isinstance(file, str) else built
    if kind in _FILE_KINDS and (path := _find_text(value, _PATHS)) is not None:
        return {"check": "file_exists", "path": path, "negate": _FILE_KINDS[kind], **label}
    if kind in _TOOL_KINDS and (tool := _find_text(value, _TOOLS)) is not None:
        return {"check": _TOOL_KINDS[kind], "tool": tool, **label}
    return None


def _find_text(value: Fields, keys: tuple[str, ...]) -> str | None:
    return next((found for key in keys if isinstance(found := value.get(key), str) and found), None)


def _get_sentence(value: Fields, *, but: str = "") -> str:
    texts = (value.get(key) for key in _SENTENCE_KEYS if key != but)
    return next((text.strip() for text in texts if isinstance(text, str) and text.strip()), "")


def _get_prompt(case: Node) -> str:
    values = _as_object(case)
    return next((text for key in _ASKED if (text := _render(values.get(key)))), "")


def _as_object(node: Node) -> Fields:
    value = read_value(node)
    return value if isinstance(value, dict) else {}


def _render(value: JsonValue) -> str:
    """Return text unchanged, and other values as JSON."""
    if isinstance(value, str):
        return value.strip()
    return "" if value in (None, [], {}) else json.dumps(value, ensure_ascii=False)


def _list_items(node: Node | None) -> tuple[Node, ...]:
    """Return the items of a list, or a single value as the only item."""
    if isinstance(node, Sequence):
        return node.items
    return () if node is None else (node,)


def _is_text(node: Node | None) -> TypeGuard[Scalar]:
    return isinstance(node, Scalar) and isinstance(read_value(node), str)
