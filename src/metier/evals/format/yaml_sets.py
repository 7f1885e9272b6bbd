"""`.agent/evals/*.yaml`: cases for the agents, tasks and skills of a workspace. The cases are those of `evals.json`.

agent: reviewer            # or task: ID, or skill: NAME
cases:
  - id: small-change
    prompt: Review the change in src/
    setup: {files: {src/a.py: "x = 1\\n"}, git: commit}
    checks: [{check: tool_not_called, tool: Write}]
"""

from pathlib import Path
from typing import NamedTuple

from metier.approval.matchers import read_value
from metier.definitions.files.contained_path import read_contained
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Sequence, read_yaml
from metier.evals.format.cases import EvalSet, TargetKind
from metier.evals.format.eval_files import CaseReader, EvalsReading

FOLDER = ".agent/evals"
MAX_BYTES = 64 * 1024
_KINDS: tuple[TargetKind, ...] = ("skill", "agent", "task")


class YamlSets(NamedTuple):
    sets: tuple[EvalSet, ...]
    problems: tuple[Problem, ...]


class _YamlLines:
    """Lines of the values of a YAML text."""

    def __init__(self, root: Node) -> None:
        self._root = root

    def find(self, *path: str | int) -> int:
        node, line = self._root, self._root.line
        for part in path:
            entry = node.find(part) if isinstance(node, Mapping) and isinstance(part, str) else None
            if entry is not None:
                node, line = entry.value, entry.line
            elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
                node = node.items[part]
                line = node.line
            else:
                break
        return line


def load_yaml_sets(workspace: Path) -> YamlSets:
    """Every file of the folder, in order of their names."""
    sets: list[EvalSet] = []
    problems: list[Problem] = []
    for file in sorted((workspace / FOLDER).glob("*.y*ml")):
        shown = file.relative_to(workspace).as_posix()
        try:
            text = read_contained(file, within=workspace, limit=MAX_BYTES).decode("utf-8-sig", "replace")
        except OSError as error:
            message = f"The file cannot be read: {error.strerror}"
            problems.append(Problem(severity="error", code="evals_unreadable", message=message, file=shown))
            continue
        found = parse_yaml_set(text, file=shown, folder=file.parent)
        sets += [found.eval_set] if found.eval_set is not None else []
        problems += found.problems
    return YamlSets(tuple(sets), tuple(problems))


class ParsedSet(NamedTuple):
    eval_set: EvalSet | None
    problems: tuple[Problem, ...]


def parse_yaml_set(text: str, *, file: str, folder: Path | None = None) -> ParsedSet:
    """The cases of one text; nothing where it does not say for what."""
    document = read_yaml(text, file=file)
    root = document.root
    if not isinstance(root, Mapping):
        return ParsedSet(None, document.problems or (_shape(file, 1),))
    named: list[tuple[TargetKind, Entry]] = [(each, entry) for each in _KINDS if (entry := root.find(each)) is not None]
    if len(named) != 1 or not isinstance(target := read_value(named[0][1].value), str):
        keys = [entry.key for entry in root.entries]
        hint = next((hint for key in keys if (hint := hint_nearest(key, _KINDS))), "")
        return ParsedSet(None, (*document.problems, _shape(file, root.line, hint)))
    kind = named[0][0]
    content = read_value(root)
    assert isinstance(content, dict), "a mapping is an object"
    content.pop(kind)
    reading = EvalsReading()
    reader = CaseReader(file, _YamlLines(root), reading, folder=folder, is_main=True)
    reader.read(content, "")
    eval_set = EvalSet(
        file=file, kind=kind, target=target, cases=tuple(reading.cases), triggers=tuple(reading.triggers)
    )
    return ParsedSet(eval_set, (*document.problems, *reading.problems))


def _shape(file: str, line: int, hint: str = "") -> Problem:
    return Problem(
        severity="error",
        code="evals_target",
        message="It does not say what is evaluated",
        file=file,
        line=line,
        hint=hint or "Begin with 'agent: ID', 'task: ID' or 'skill: NAME', one of them",
    )
