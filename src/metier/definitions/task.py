"""A task: what to do. `TASK.md` is the first step; `next` names the file of the one after it, in the same folder."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec import Struct

from metier.definitions.acceptance import Criterion, read_acceptance
from metier.definitions.permits import Permits, read_permits
from metier.definitions.problems import Problem, has_errors
from metier.definitions.references import Reference, read_references
from metier.definitions.text.document import Document, load_document, read_free_form, require_text
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Mapping, Node, Plain, Scalar, Sequence, is_nothing

FILE_NAME = "TASK.md"
MAX_STEPS = 100
KEYS = (
    "name",
    "description",
    "metadata",
    "agent",
    "tools",
    "tool_approvals",
    "skills",
    "tasks",
    "task_approvals",
    "inputs",
    "next",
    "output_schema",
    "acceptance",
)
_INPUT_KEYS = ("name", "description", "default", "schema")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_FILE_NAME = re.compile(r"[^/\\:\x00]+\.md", re.IGNORECASE)


class TaskInput(Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    default: str | None = None
    """`None` means that the caller must give it."""
    schema: Node | None = None
    """As written: a JSON Schema of the value; without one every text will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStep:
    """One Markdown file of a task."""

    name: str
    file: Path
    body: str
    body_line: int = 1
    data: bytes = field(default=b"", repr=False, compare=False)
    """The bytes that it was read from."""
    description: str = ""
    metadata: dict[str, Plain] = field(default_factory=dict[str, Plain])
    agent: str | None = None
    """An agent's ID; `None` takes the agent of the task, else the default one."""
    tools: tuple[str, ...] | None = None
    """`None`, like `inherit`, takes what surrounds the step; see `inherit.resolve_list`."""
    skills: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    tool_approvals: Node | None = None
    """As written, with lines; the approval room gives it a meaning."""
    task_approvals: Node | None = None
    next: str | None = None
    output_schema: Node | None = None
    """As written: a JSON Schema of the result, which must then be JSON."""
    acceptance: tuple[Criterion, ...] = ()


class TaskDefinition(Struct, frozen=True, kw_only=True):
    id: str
    """The folder's path under `tasks/`, e.g. `foo/bar`."""
    inputs: tuple[TaskInput, ...] = ()
    steps: tuple[TaskStep, ...]
    """In order; the first is `TASK.md` and speaks for the whole task."""

    @property
    def name(self) -> str:
        return self.steps[0].name

    @property
    def description(self) -> str:
        return self.steps[0].description

    @property
    def agent(self) -> str | None:
        return self.steps[0].agent


class TaskReading(Struct, frozen=True):
    task: TaskDefinition | None
    """Nothing when one of the problems is an error."""
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()
    """What it names, also where the definition is nothing."""
    permits: tuple[Permits, ...] = ()
    """What its steps say on what may be used, likewise."""
    draft: TaskDefinition | None = None
    """The task as far as it could be read, for further checks; nothing where its inputs are not known."""


def load_task(
    file: Path,
    *,
    id: str = "",  # noqa: A002 - the word of the format
    within: Path | None = None,
    load: Callable[[Path], Document] | None = None,
    exists: Callable[[Path], bool] = Path.is_file,
) -> TaskReading:
    """Read a `TASK.md` and the chain of steps that follows it. Every problem of every step is reported.

    `load` and `exists` find the files elsewhere than on disk, for a task as it once was.
    """
    load = load or partial(load_document, within=within)
    problems: list[Problem] = []
    references: list[Reference] = []
    permits: list[Permits] = []
    steps: list[TaskStep] = []
    inputs: tuple[TaskInput, ...] | None = None
    seen: set[str] = set()
    step_file: Path | None = file
    while step_file is not None:
        seen.add(step_file.name.casefold())
        document = load(step_file)
        if not steps:
            inputs = _find_inputs(document.fields)
        step = _read_step(document, step_file, is_first=not steps)
        steps.append(step)
        step_file = _find_next(document.fields, step_file, seen, exists=exists)
        problems.extend(document.fields.problems)
        references.extend(read_references(document.fields))
        permits.extend(read_permits(document.fields))
    task = TaskDefinition(id=id or file.parent.name, inputs=inputs or (), steps=tuple(steps))
    return TaskReading(
        task=None if has_errors(problems) else task,
        problems=tuple(problems),
        references=tuple(references),
        permits=tuple(permits),
        draft=None if inputs is None else task,
    )


def _read_step(document: Document, file: Path, *, is_first: bool) -> TaskStep:
    fields = document.fields
    if not fields.is_unreadable:
        fields.check_keys(KEYS)
        if not is_first and (entry := fields.find("inputs")):
            message = "Field 'inputs' is allowed only in 'TASK.md'"
            fields.report("error", "inputs_in_step", message, line=entry.line, hint="Move it to 'TASK.md'")
        if is_first:
            require_text(fields, "name")
    return TaskStep(
        name=fields.text("name") or file.stem,
        file=file,
        body=document.body,
        body_line=document.body_line,
        description=fields.text("description") or "",
        metadata=read_free_form(fields, "metadata"),
        agent=fields.text("agent"),
        tools=fields.texts("tools"),
        skills=fields.texts("skills"),
        tasks=fields.texts("tasks"),
        tool_approvals=fields.node("tool_approvals"),
        task_approvals=fields.node("task_approvals"),
        next=fields.text("next"),
        data=document.data,
        output_schema=_read_mapping(fields, "output_schema"),
        acceptance=read_acceptance(fields),
    )


def _read_mapping(fields: Fields, key: str) -> Node | None:
    entry = fields.find(key)
    if entry is None or isinstance(entry.value, Mapping):
        return entry.value if entry else None
    hint = "Write 'type: …' below it"
    fields.report("error", "not_a_mapping", f"Field {key!r} must be a JSON Schema", line=entry.line, hint=hint)
    return None


def _find_next(fields: Fields, file: Path, seen: set[str], *, exists: Callable[[Path], bool]) -> Path | None:
    entry = fields.find("next")
    if entry is None:
        return None
    written = (fields.text("next") or "").removeprefix("./")
    following = file.parent / written
    fault = _next_fault(written, following, seen, exists=exists)
    if fault is None:
        return following
    code, message = fault
    fields.report("error", code, message, line=entry.line, hint="Name a Markdown file beside this one")
    return None


def _next_fault(
    written: str, following: Path, seen: set[str], *, exists: Callable[[Path], bool]
) -> tuple[str, str] | None:
    if not _FILE_NAME.fullmatch(written) or written.startswith((".", "~")):
        return "next_outside", f"Next step {written!r} is not a Markdown file of the same folder"
    if written.casefold() in seen:
        return "next_cycle", f"Next step {written!r} was a step already"
    if following.is_symlink():
        return "next_outside", f"Next step {written!r} is a link"
    if not exists(following):
        return "next_missing", f"Next step {written!r} does not exist"
    if len(seen) >= MAX_STEPS:
        return "next_too_many", f"The task has more than {MAX_STEPS} steps"
    return None


def _find_inputs(fields: Fields) -> tuple[TaskInput, ...] | None:
    """Nothing where they cannot be relied on."""
    before = len(fields.problems)
    inputs = None if fields.is_unreadable else _read_inputs(fields)
    return inputs if len(fields.problems) == before else None


def _read_inputs(fields: Fields) -> tuple[TaskInput, ...]:
    entry = fields.find("inputs")
    if entry is None:
        return ()
    if not isinstance(entry.value, Sequence):
        hint = "Write one '- name: …' for each"
        fields.report("error", "not_a_list", "Field 'inputs' must be a list", line=entry.line, hint=hint)
        return ()
    inputs: dict[str, TaskInput] = {}
    for item in entry.value.items:
        found = _read_input(fields, item)
        if found is not None and found.name in inputs:
            fields.report("error", "duplicate_input", f"Input {found.name!r} stands twice", line=item.line)
        elif found is not None:
            inputs[found.name] = found
    return tuple(inputs.values())


def _read_input(fields: Fields, item: Node) -> TaskInput | None:
    if not isinstance(item, Mapping):
        hint = "Write '- name: …' and below it 'description: …'"
        fields.report("error", "input", "An input must be a mapping", line=item.line, hint=hint)
        return None
    inner = Fields(item, file=fields.file, strict=True, problems=fields.problems, first_line=item.line)
    inner.check_keys(_INPUT_KEYS)
    name = require_text(inner, "name")
    if name and not _IDENTIFIER.fullmatch(name):
        message = f"Input name {name!r} must be letters, digits, hyphens and underscores"
        inner.report("error", "input", message, line=item.line)
    return TaskInput(
        name=name,
        description=inner.text("description") or "",
        default=_default(inner),
        schema=_read_mapping(inner, "schema"),
    )


def _default(inner: Fields) -> str | None:
    """An empty default in quotes is a default; nothing after the colon is none."""
    entry = inner.mapping.find("default")
    if entry is None or is_nothing(entry.value):
        return None
    return entry.value.value if isinstance(entry.value, Scalar) else inner.text("default")
