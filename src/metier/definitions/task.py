"""Task definitions. `TASK.md` is the first step, and `next` names the file of the following step in the same folder.

A step is done when its acceptance criteria are met. The model judges texts; files and commands are checked.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from msgspec import Struct, field
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import Exact, FileModel, FreeForm, Items, Raw, Text, Texts, fault, read_model
from metier.definitions.references import Permits, Reference, read_permits, read_references
from metier.definitions.text.front_matter import Document, load_document
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Plain, Scalar, Sequence, is_nothing


class Criterion(Struct, frozen=True, kw_only=True):
    """An acceptance criterion. Without `file` and `command` only the model can judge it."""

    text: str = ""
    """Description."""
    file: str = ""
    """A file of the workspace that must exist and not be empty."""
    contains: str = ""
    """Text that the file must contain."""
    command: str = ""
    """A program with arguments, run in the workspace, that must exit with 0."""

    @property
    def is_checkable(self) -> bool:
        return bool(self.file or self.command)


def _read_item(value: object) -> object:
    """Read a plain text as the `text` of a criterion."""
    if not isinstance(value, Scalar):
        return value
    if not value.value.strip():
        raise fault("criterion", "must be text or a mapping", "Write a sentence, or 'file: …' or 'command: …'")
    return Mapping((Entry("text", value.line, value),), value.line)


class CriterionFields(FileModel):
    file: Text = ""
    contains: Text = ""
    command: Text = ""
    text: Text = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.file or self.command or self.text):
            raise fault("criterion", "must have 'file', 'command' or 'text'")
        if self.contains and not self.file:
            raise fault("criterion", "'contains' needs a file", "Add 'file: …'")
        return self

    def build(self) -> Criterion:
        return Criterion(text=self.text, file=self.file, contains=self.contains, command=self.command)


Acceptance = Items[Annotated[CriterionFields, BeforeValidator(_read_item)]]
"""The list below `acceptance`."""


def render_criterion(criterion: Criterion) -> str:
    """Describe a criterion in one line, for the agent."""
    said = [criterion.text] if criterion.text else []
    if criterion.file and criterion.contains:
        said.append(f"the file {criterion.file} contains {criterion.contains!r}")
    elif criterion.file:
        said.append(f"the file {criterion.file} is there and not empty")
    if criterion.command:
        said.append(f"`{criterion.command}` ends with exit code 0")
    return "; ".join(said)


FILE_NAME = "TASK.md"
MAX_STEPS = 100
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
# On Windows a backslash is a separator, and a colon names a drive or another stream of a file.
_FILE_NAME = re.compile(r"[^/\\:\x00]+\.md", re.IGNORECASE)


class TaskInput(Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    default: str | None = None
    """None if the caller must provide a value."""
    schema: Node | None = None
    """The unparsed JSON Schema of the value. None accepts any text."""


def _check_name(name: str) -> str:
    if _IDENTIFIER.fullmatch(name):
        return name
    raise fault("input", f"is {name!r}; it must be letters, digits, hyphens and underscores")


def _check_schema(node: Node) -> Node:
    if isinstance(node, Mapping):
        return node
    raise fault("not_a_mapping", "must be a JSON Schema", "Write 'type: …' below it")


_Schema = Annotated[Raw, AfterValidator(_check_schema)]


class _InputFields(FileModel):
    shape_hint = "Write '- name: …' and below it 'description: …'"

    name: Annotated[Text, AfterValidator(_check_name)]
    description: Text = ""
    default: Exact | None = None
    """An empty string in quotes is a default value; an empty value means that there is none."""
    value_schema: _Schema | None = Field(default=None, alias="schema")


class StepFields(FileModel):
    """The front matter of one Markdown file of a task."""

    name: Text = ""
    description: Text = ""
    metadata: FreeForm = Field(default_factory=dict[str, Plain])
    agent: Text | None = None
    """ID of an agent; by default the task's agent, else the default agent."""
    tools: Texts | None = None
    """Without a list or with `inherit`, the step has the tools of its parent; see `references.resolve_list`."""
    tool_approvals: Raw | None = None
    """The unparsed node, which `approval` interprets."""
    skills: Texts | None = None
    tasks: Texts | None = None
    task_approvals: Raw | None = None
    inputs: Raw | None = None
    next: Text | None = None
    output_schema: _Schema | None = None
    """The unparsed JSON Schema of the result, which must be JSON if this is set."""
    acceptance: Acceptance = ()


class TaskStep(Struct, frozen=True, kw_only=True):
    """One Markdown file of a task."""

    name: str
    file: Path
    body: str
    body_line: int = 1
    data: bytes = b""
    """The bytes it was parsed from."""
    description: str = ""
    metadata: dict[str, Plain] = field(default_factory=dict[str, Plain])
    agent: str | None = None
    tools: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    tool_approvals: Node | None = None
    task_approvals: Node | None = None
    next: str | None = None
    output_schema: Node | None = None
    acceptance: tuple[Criterion, ...] = ()


class TaskDefinition(Struct, frozen=True, kw_only=True):
    id: str
    """Path of the folder under `tasks/`, e.g. `foo/bar`."""
    inputs: tuple[TaskInput, ...] = ()
    steps: tuple[TaskStep, ...]
    """Steps in order. The first is `TASK.md`, which also has the fields of the whole task."""

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
    """None if any problem is an error."""
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()
    """References of its files, even if the task could not be loaded."""
    permits: tuple[Permits, ...] = ()
    """Permissions of its steps, even if the task could not be loaded."""
    draft: TaskDefinition | None = None
    """The valid parts of the task, for further checks. None if its inputs are invalid."""


def load_task(
    file: Path,
    *,
    id: str = "",  # noqa: A002 - the word of the format
    within: Path | None = None,
    load: Callable[[Path], Document] | None = None,
    exists: Callable[[Path], bool] = Path.is_file,
) -> TaskReading:
    """Load a `TASK.md` and its chain of steps. Every problem of every step is reported.

    `load` and `exists` replace the file system, to load an earlier version of a task.
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
        # Some file systems would find the same file under another case, and the chain would never end.
        seen.add(step_file.name.casefold())
        document = load(step_file)
        found = list(document.problems)
        if not steps:
            inputs = _find_inputs(document, found)
        steps.append(_read_step(document, step_file, found, is_first=not steps))
        step_file = _find_next(document, step_file, seen, problems=found, exists=exists)
        problems += sorted(found, key=lambda problem: problem.line or 0)
        references.extend(read_references(document.root, file=document.file))
        permits.extend(read_permits(document.root, file=document.file))
    task = TaskDefinition(id=id or file.parent.name, inputs=inputs or (), steps=tuple(steps))
    return TaskReading(
        task=None if has_errors(problems) else task,
        problems=tuple(problems),
        references=tuple(references),
        permits=tuple(permits),
        draft=None if inputs is None else task,
    )


def _read_step(document: Document, file: Path, problems: list[Problem], *, is_first: bool) -> TaskStep:
    fields = StepFields.model_construct()
    if not document.is_unreadable:
        reading = read_model(StepFields, document.root, file=document.file)
        fields = reading.draft or fields
        problems += reading.problems
        if is_first and not fields.name and reading.draft is not None:
            problems.append(_error("missing_name", "Field 'name' is missing", document, document.root.line))
        if not is_first and (entry := document.root.find("inputs")):
            message = "Field 'inputs' is allowed only in 'TASK.md'"
            problems.append(_error("inputs_in_step", message, document, entry.line, hint="Move it to 'TASK.md'"))
    return TaskStep(
        name=fields.name or file.stem,
        file=file,
        body=document.body,
        body_line=document.body_line,
        data=document.data,
        description=fields.description,
        metadata=fields.metadata,
        agent=fields.agent,
        tools=fields.tools,
        skills=fields.skills,
        tasks=fields.tasks,
        tool_approvals=fields.tool_approvals,
        task_approvals=fields.task_approvals,
        next=fields.next,
        output_schema=fields.output_schema,
        acceptance=tuple(criterion.build() for criterion in fields.acceptance),
    )


def _error(code: str, message: str, document: Document, line: int, *, hint: str = "") -> Problem:  # noqa: PLR0917
    return Problem(severity="error", code=code, message=message, file=document.file, line=line, hint=hint)


def _find_next(
    document: Document, file: Path, seen: set[str], *, problems: list[Problem], exists: Callable[[Path], bool]
) -> Path | None:
    entry = document.root.find("next")
    if entry is None or not isinstance(entry.value, Scalar) or is_nothing(entry.value):
        return None
    written = entry.value.value.strip().removeprefix("./")
    following = file.parent / written
    wrong = _next_fault(written, following, seen, exists=exists)
    if wrong is None:
        return following
    code, message = wrong
    problems.append(_error(code, message, document, entry.line, hint="Name a Markdown file next to this one"))
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


def _find_inputs(document: Document, problems: list[Problem]) -> tuple[TaskInput, ...] | None:
    """Read the inputs of a task. Return None if one of them is invalid."""
    before = len(problems)
    inputs = None if document.is_unreadable else _read_inputs(document, problems)
    return inputs if len(problems) == before else None


def _read_inputs(document: Document, problems: list[Problem]) -> tuple[TaskInput, ...]:
    entry = document.root.find("inputs")
    if entry is None or is_nothing(entry.value):
        return ()
    if not isinstance(entry.value, Sequence):
        hint = "Write one '- name: …' for each"
        problems.append(_error("not_a_list", "Field 'inputs' must be a list", document, entry.line, hint=hint))
        return ()
    inputs: dict[str, TaskInput] = {}
    for item in entry.value.items:
        reading = read_model(_InputFields, item, file=document.file, subject="An input")
        problems += reading.problems
        fields = reading.value
        if fields is not None and fields.name in inputs:
            problems.append(_error("duplicate_input", f"Input {fields.name!r} is repeated", document, item.line))
        elif fields is not None:
            inputs[fields.name] = TaskInput(
                name=fields.name,
                description=fields.description,
                default=fields.default,
                schema=fields.value_schema,
            )
    return tuple(inputs.values())
