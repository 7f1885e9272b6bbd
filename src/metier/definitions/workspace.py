"""All definitions of a project, read in strict mode, with a check that their references exist."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from metier.definitions import agent as agents
from metier.definitions import task as tasks
from metier.definitions.agent import AgentDefinition, load_agent
from metier.definitions.files.walk import FoundDefinition, Walk, report_duplicate
from metier.definitions.names import fold_id
from metier.definitions.nearest import hint_nearest
from metier.definitions.placeholders import check_placeholders
from metier.definitions.problems import Problem
from metier.definitions.references import Permits, Reference
from metier.definitions.skills.catalog import Catalog
from metier.definitions.skills.skill import SkillDefinition, load_skill
from metier.definitions.skills.skill_file import FILE_NAME as SKILL_FILE
from metier.definitions.skills.skill_names import hint_skill
from metier.definitions.skills.sources import SKILL_FOLDERS, WORKSPACE_FOLDERS, is_own_folder
from metier.definitions.task import TaskDefinition, load_task

type Definition = AgentDefinition | SkillDefinition | TaskDefinition


class Checked(Struct, frozen=True, kw_only=True):
    """One file of the workspace with its problems."""

    kind: str
    id: str
    path: str
    definition: Definition | None
    problems: tuple[Problem, ...]
    references: tuple[Reference, ...] = ()
    permits: tuple[Permits, ...] = ()
    draft: TaskDefinition | None = None
    """The valid parts of a task, even with errors."""


class Workspace(Struct, frozen=True, kw_only=True):
    root: Path
    agents: dict[str, AgentDefinition]
    """Agents by ID."""
    tasks: dict[str, TaskDefinition]
    checked: tuple[Checked, ...]
    """Every agent, task and skill file, in this order. Each kind is sorted by location and ID."""
    problems: tuple[Problem, ...]
    """Problems of folders."""


def load_workspace(root: Path, catalog: Catalog, *, strict: bool = False, skills_dir: Path | None = None) -> Workspace:
    """Read every definition of a project. `catalog` has the available skills.

    `skills_dir` is an additional folder of skills. The project's own skills must follow the Agent Skills specification.
    Those in folders shared with other tools must do so only with `strict`.
    """
    problems: list[Problem] = []
    found_agents = _load_kind(root, "agents", agents.FILE_NAME, problems=problems, load=read_agent)
    found_tasks = _load_kind(root, "tasks", tasks.FILE_NAME, problems=problems, load=read_task)
    by_agent = {item.id: item.definition for item in found_agents if isinstance(item.definition, AgentDefinition)}
    by_task = {item.id: item.definition for item in found_tasks if isinstance(item.definition, TaskDefinition)}
    known = _Known(agents=[item.id for item in found_agents], tasks=[item.id for item in found_tasks], catalog=catalog)
    skills = _load_skills(_list_skill_folders(root, skills_dir), problems, strict=strict)
    checked = [*found_agents, *found_tasks, *skills]
    return Workspace(
        root=root,
        agents=by_agent,
        tasks=by_task,
        checked=tuple(known.check(item) for item in checked),
        problems=tuple(problems),
    )


def read_agent(found: FoundDefinition) -> Checked:
    reading = load_agent(Path(found.path), id=found.id, within=found.within)
    return Checked(
        kind="agent",
        id=found.id,
        path=found.path,
        definition=reading.agent,
        problems=reading.problems,
        references=reading.references,
        permits=reading.permits,
    )


def read_task(found: FoundDefinition) -> Checked:
    reading = load_task(Path(found.path), id=found.id, within=found.within)
    unknown = check_placeholders(reading.draft) if reading.draft else ()
    return Checked(
        kind="task",
        id=found.id,
        path=found.path,
        definition=reading.task,
        problems=(*reading.problems, *unknown, *_list_empty(reading.draft)),
        references=reading.references,
        permits=reading.permits,
        draft=reading.draft,
    )


def _list_empty(task: TaskDefinition | None) -> Iterator[Problem]:
    for step in task.steps[:1] if task else ():
        if not step.body.strip() and not step.skills:
            message = "The task has no text, so the model is told nothing but its name"
            hint = "Say below the front matter what is to be done"
            yield Problem(
                severity="warning",
                code="empty_body",
                message=message,
                file=str(step.file),
                line=step.body_line,
                hint=hint,
            )


def _checked_skill(found: FoundDefinition, *, is_own: bool, strict: bool) -> Checked:
    reading = load_skill(Path(found.path).parent, strict=strict or is_own, id=found.id, within=found.within)
    # A project's own skills may use Metier's fields; only `--strict` reports them.
    problems = [problem for problem in reading.problems if strict or problem.code != "extension_field"]
    return Checked(
        kind="skill",
        id=found.id,
        path=found.path,
        definition=reading.skill,
        problems=tuple(problems),
        # In a skill for another tool these fields may have another meaning.
        references=reading.references if strict or is_own else (),
        permits=reading.permits if strict or is_own else tuple(replace(each, tools={}) for each in reading.permits),
    )


def _load_kind(
    root: Path, folder: str, file_name: str, *, problems: list[Problem], load: Callable[[FoundDefinition], Checked]
) -> list[Checked]:
    """Return the definitions of one kind. For duplicate IDs, `.agent` takes precedence over `.nanobot`."""
    taken: dict[str, str] = {}
    checked: list[Checked] = []
    for base in WORKSPACE_FOLDERS:
        walk = Walk(root / base / folder, file_name, within=root)
        for found in walk:
            first = taken.setdefault(fold_id(found.id), found.path)
            if first == found.path:
                checked.append(load(found))
            else:
                problems.append(report_duplicate(found, first))
        problems.extend(walk.problems)
        problems.extend(_list_without_definition(root / base / folder, file_name, [item.path for item in checked]))
    return checked


def _list_without_definition(folder: Path, file_name: str, found: Iterable[str]) -> Iterator[Problem]:
    """Report folders whose Markdown files are never read because the defining file is missing."""
    paths = [Path(path) for path in found]
    if not folder.is_dir():
        return
    for inside in sorted(folder.iterdir()):
        if inside.name.startswith(".") or not inside.is_dir() or any(path.is_relative_to(inside) for path in paths):
            continue
        names = {path.name.lower() for path in inside.iterdir()}
        if file_name.lower() not in names and any(name.endswith(".md") for name in names):
            message = f"The folder has no '{file_name}', so nothing in it is read"
            hint = f"Name its first file '{file_name}'"
            yield Problem(severity="warning", code="no_definition", message=message, file=str(inside), hint=hint)


class _SkillFolder(NamedTuple):
    path: Path
    within: Path | None
    is_own: bool


def _list_skill_folders(root: Path, skills_dir: Path | None) -> list[_SkillFolder]:
    folders = [_SkillFolder(root / name, root, is_own_folder(root / name, root)) for name in SKILL_FOLDERS]
    if skills_dir is not None and skills_dir not in [folder.path for folder in folders]:
        is_own = is_own_folder(skills_dir, root)
        folders.append(_SkillFolder(skills_dir, root if is_own else None, is_own))
    return folders


def _load_skills(folders: Iterable[_SkillFolder], problems: list[Problem], *, strict: bool) -> list[Checked]:
    checked: list[Checked] = []
    for folder in folders:
        taken: dict[str, str] = {}
        walk = Walk(folder.path, SKILL_FILE, within=folder.within)
        for found in walk:
            first = taken.setdefault(fold_id(found.id), found.path)
            if first != found.path:
                problems.append(report_duplicate(found, first))
            checked.append(_checked_skill(found, is_own=folder.is_own, strict=strict))
        problems.extend(walk.problems)
    return checked


class _Known:
    """Reports references to agents, tasks and skills that do not exist."""

    def __init__(self, *, agents: Iterable[str], tasks: Iterable[str], catalog: Catalog) -> None:
        self._agents = {fold_id(id): id for id in agents}  # noqa: A001
        self._tasks = {fold_id(id): id for id in tasks}  # noqa: A001
        self._catalog = catalog

    def check(self, item: Checked) -> Checked:
        missing = [self._missing(reference) for reference in item.references if not self._exists(reference)]
        return replace(item, problems=(*item.problems, *missing)) if missing else item

    def _exists(self, reference: Reference) -> bool:
        match reference.kind:
            case "agent":
                return fold_id(reference.name) in self._agents
            case "task":
                return fold_id(reference.name) in self._tasks
            case "skill":
                return self._catalog.find(reference.name) is not None

    def _missing(self, reference: Reference) -> Problem:
        kind, name = reference.kind, reference.name
        skills = [skill.canonical for skill in self._catalog.skills]
        known = {"agent": self._agents.values(), "task": self._tasks.values(), "skill": skills}[kind]
        hint = hint_skill if kind == "skill" else hint_nearest
        return Problem(
            severity="error",
            code=f"unknown_{kind}",
            message=f"No {kind} is called {name!r}",
            file=reference.file,
            line=reference.line,
            hint=hint(name, known) or f"Add the {kind}, or take the name out",
        )
