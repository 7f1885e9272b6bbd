"""Task definitions of a workspace: find them by ID, check them, pin them to a run and restore them."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from pydantic import JsonValue

from metier.definitions.names import fold_id
from metier.definitions.placeholders import check_placeholders
from metier.definitions.problems import Problem, has_errors
from metier.definitions.references import INHERIT, Reference, resolve_list
from metier.definitions.skills.skill_names import is_called
from metier.definitions.task import FILE_NAME, TaskDefinition, TaskReading, TaskStep, load_task
from metier.definitions.text.front_matter import Document, parse_document
from metier.engine.delegation import InputSpec, fill_inputs, read_inputs, read_output_schema
from metier.errors import ConfigError, UsageError
from metier.runtime.host import Host
from metier.runtime.workspace.agents import ResolvedAgent, choose_profile, read_definition_file
from metier.runtime.workspace.lookup import describe_unknown, get_definition, list_definitions, list_ids
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.skill_catalog import activate_named, get_all_skills
from metier.skills.package import SkillPackage
from metier.store.base import Store
from metier.tools.base import Tool
from metier.tools.schemas import SchemaCheck
from metier.tools.toolbox import Toolbox

TASK = "task:"


def get_task(host: Host, task_id: str) -> TaskDefinition:
    """Return a task. Raises `UsageError` if it doesn't exist, `ConfigError` with all of its problems."""
    found = get_definition(host.workspace, "task", task_id)
    reading = load_task(Path(found.path), id=found.id, within=found.within)
    problems = list_problems(host, reading)
    if reading.task is None or has_errors(problems):
        raise ConfigError(f"Task {found.id!r} cannot be used", hint="Correct the lines above", problems=problems)
    return reading.task


def list_problems(host: Host, reading: TaskReading) -> tuple[Problem, ...]:
    """List all problems of a task: of its files, the names in its texts and lists, and its schemas."""
    if reading.task is None:
        return (*reading.problems, *_find_unknown(host, reading.references))
    return (
        *reading.problems,
        *check_placeholders(reading.task),
        *_find_unknown(host, reading.references),
        *check_schemas(reading.task),
    )


def check_schemas(task: TaskDefinition) -> tuple[Problem, ...]:
    """List the problems of its input and result schemas, and defaults that violate their schema."""
    return (*(problem for step in task.steps for problem in _check_step(step)), *_check_inputs(task))


async def pin_task(task: TaskDefinition, store: Store) -> dict[str, str]:
    """Pin every file of the task as `task:<id>/<file>`."""
    return {_name(task.id, step.file.name): await store.put_blob(step.data) for step in task.steps}


async def find_pinned_task(
    workspace: Path, task_id: str, *, pins: Mapping[str, str], store: Store
) -> TaskDefinition | None:
    """Return the pinned task; None if none is pinned."""
    prefix = f"{TASK}{task_id}/"
    found = {name.removeprefix(prefix): digest for name, digest in pins.items() if name.startswith(prefix)}
    if FILE_NAME not in found:
        return None
    texts = {name: await store.get_blob(digest) for name, digest in found.items()}

    def load(file: Path) -> Document:
        return parse_document(texts[file.name], file=file)

    folder = _get_folder(workspace, task_id)
    # The chain of steps is followed in the pinned files, whatever is on disk now.
    reading = load_task(folder / FILE_NAME, id=task_id, load=load, exists=lambda file: file.name in texts)
    assert reading.task is not None, "only what could be read is pinned"
    return reading.task


def list_changed_task(run: PreparedRun) -> tuple[str, ...]:
    """List the pins of files that changed since the run started."""
    steps = run.task.steps if run.task is not None else ()
    names = [(_name(run.task.id, step.file.name), step.file) for step in steps if run.task is not None]
    workspace = run.agent.host.workspace
    return tuple(name for name, file in names if name in run.pins and _digest(file, workspace) != run.pins[name])


def apply_step(agent: ResolvedAgent, steps: Sequence[TaskStep]) -> ResolvedAgent:
    """Return the agent with the skills and tasks of `TASK.md` and the step. Its profile is at least `guarded`."""
    for step in steps:
        tasks = resolve_list(step.tasks, agent.tasks)
        agent = replace(agent, packages=_choose_packages(agent, step.skills), tasks=tasks)
    # The author of a task's file did not choose the user's `permissive`.
    profile = choose_profile(agent.profile, agent.definition)
    return replace(agent, host=agent.host.with_runtime(profile="guarded" if profile == "permissive" else profile))


def choose_tools(agent: ResolvedAgent, offered: Sequence[Tool], steps: Sequence[TaskStep]) -> tuple[Tool, ...]:
    """Return the agent's tools as narrowed by `TASK.md` and the step."""
    chosen = agent.choose_tools(offered)
    for step in steps:
        if step.tools is not None:
            visible = Toolbox(offered).resolve(resolve_list(step.tools, [tool.info.name for tool in chosen]))
            chosen = tuple(tool for tool in offered if tool.info.name in visible)
    return chosen


def _choose_packages(agent: ResolvedAgent, own: Sequence[str] | None) -> tuple[SkillPackage, ...]:
    """Choose the packages. A skill that a step names must be trusted, but it needn't be enabled."""
    if own is None:
        return agent.packages
    named = activate_named(get_all_skills(agent.host), [name for name in own if name != INHERIT])
    wanted = resolve_list(own, [package.definition.name for package in agent.packages])
    pool = {package.definition.name: package for package in (*named.packages, *agent.packages)}
    return tuple(pool[name] for name in sorted(pool) if any(is_called(pool[name].definition, each) for each in wanted))


def _find_unknown(host: Host, references: Iterable[Reference]) -> list[Problem]:
    agents, tasks = list_ids(host.workspace, "agent"), list_ids(host.workspace, "task")
    skills = [package.definition for package in get_all_skills(host).packages]
    known = {"agent": agents, "task": tasks, "skill": [skill.name for skill in skills]}
    problems: list[Problem] = []
    for reference in references:
        kind, name = reference.kind, reference.name
        if kind == "skill":
            is_there = any(is_called(skill, name) for skill in skills)
        else:
            is_there = fold_id(name) in map(fold_id, known[kind])
        if not is_there:
            problems.append(describe_unknown(kind, name, known[kind], file=reference.file, line=reference.line))
    return problems


def _check_step(step: TaskStep) -> list[Problem]:
    schema = read_output_schema(step)
    if schema is None or step.output_schema is None:
        return []
    return _check_schema("output_schema", schema, file=step.file, line=step.output_schema.line)


def _check_inputs(task: TaskDefinition) -> list[Problem]:
    problems: list[Problem] = []
    for item, spec in zip(task.inputs, read_inputs(task), strict=True):
        if item.schema is not None and spec.value_schema is not None:
            file = task.steps[0].file
            wrong = _check_schema(f"schema of {item.name}", spec.value_schema, file=file, line=item.schema.line)
            problems += wrong or _check_default(spec, file=file, line=item.schema.line)
    return problems


def _check_schema(name: str, schema: dict[str, JsonValue], *, file: Path, line: int) -> list[Problem]:
    try:
        SchemaCheck(name, schema)
    except UsageError as error:
        message = f"Field {name!r} is not a JSON Schema: {error.message.partition(': ')[2]}"
        return [Problem(severity="error", code="schema", message=message, file=str(file), line=line)]
    return []


def _check_default(spec: InputSpec, *, file: Path, line: int) -> list[Problem]:
    if spec.default is None:
        return []
    _, wrong = fill_inputs((spec,), {})
    return [
        Problem(
            severity="error",
            code="input_default",
            message=f"The default of input {spec.name!r} is not what its schema says",
            file=str(file),
            line=line,
            hint=each.partition(": ")[2],
        )
        for each in wrong
    ]


def _get_folder(workspace: Path, task_id: str) -> Path:
    # The task may be gone by now, but its pinned files still need names.
    found = list_definitions(workspace, "task").get(fold_id(task_id))
    return Path(found.path).parent if found else workspace / ".agent/tasks" / task_id


def _name(task_id: str, file: str) -> str:
    return f"{TASK}{task_id}/{file}"


def _digest(file: Path, workspace: Path) -> str:
    try:
        return hashlib.sha256(read_definition_file(file, workspace)).hexdigest()
    except OSError:
        return ""
