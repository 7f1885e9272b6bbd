"""Eval targets: skills, agents and tasks, with their cases and files."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from metier.definitions.files.contained_path import is_contained, read_contained
from metier.definitions.names import fold_id
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.project_files import NAMES as PROJECT_FILES
from metier.definitions.skills.skill import load_skill
from metier.definitions.skills.skill_file import FILE_NAME, get_skill_file
from metier.definitions.skills.skill_names import is_called
from metier.errors import SkillError, UsageError
from metier.evals.cases import EvalCase, TargetKind, Trigger
from metier.evals.eval_files import FOLDER as EVALS
from metier.evals.eval_files import WORKSPACE_FOLDER as YAML_FOLDER
from metier.evals.eval_files import load_yaml_sets, read_evals
from metier.runtime.host import Host
from metier.runtime.workspace.lookup import list_definitions
from metier.runtime.workspace.skill_catalog import get_all_skills, get_skills
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import check_trusted

SKIPPED_FOLDERS = frozenset({EVALS, "__pycache__", ".git", "node_modules", ".venv"})
"""Folders of a skill that evals don't copy."""
_DEFINITIONS = (".agent", "context")
MAX_COPIED_BYTES = 64 * 1024 * 1024
"""Size limit of each file."""


class SourcedCase(Struct, frozen=True, kw_only=True):
    """A case with the folder of its files and its recording."""

    case: EvalCase
    folder: Path
    """Base folder of its file names: the skill's folder, or `.agent/evals`."""
    recordings: Path
    file: str


class Target(Struct, frozen=True, kw_only=True):
    kind: TargetKind
    id: str
    host: Host
    cases: tuple[SourcedCase, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    problems: tuple[Problem, ...] = ()
    package: SkillPackage | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.id}"

    def check_trusted(self) -> None:
        """Raise `SkillNotTrusted` or `UsageError` for untrusted content, because its copy would be trusted."""
        if self.package is not None:
            check_trusted(self.package)
        own = self.host.workspace / YAML_FOLDER
        is_of_workspace = self.package is None or any(each.folder == own for each in self.cases)
        if is_of_workspace and not self.host.trust.is_trusted:
            raise UsageError(
                "This folder came from elsewhere and you have not trusted it, so nothing in it is run",
                hint="Review its files, then run `agent trust`",
            )

    def list_files(self) -> dict[str, Path]:
        """Return the files of the target by path, without evals. Links out of its folder are skipped."""
        if self.package is not None:
            return dict(_walk(self.package.folder, self.package.folder))
        workspace = self.host.workspace
        roots = [workspace / name for name in _DEFINITIONS]
        skills = workspace / self.host.settings.skills.dir
        found = {path: file for root in (*roots, skills) for path, file in _walk(root, workspace)}
        shared = [name for name in PROJECT_FILES if (workspace / name).is_file()]
        return found | {name: workspace / name for name in shared if _lies_in(workspace / name, workspace)}

    def read(self, file: Path) -> bytes:
        """Read one of its files. Raises `UsageError`."""
        return read_within(self.host.workspace if self.package is None else self.package.folder, file)

    def digest_files(self) -> dict[str, str]:
        """Return the SHA-256 of each file, by path."""
        return {path: hashlib.sha256(self.read(file)).hexdigest() for path, file in sorted(self.list_files().items())}


def read_within(folder: Path, file: Path) -> bytes:
    """Read a file. Raises `UsageError` for a link out of the folder, a non-regular file, and a large file."""
    try:
        data = read_contained(file, within=folder, limit=MAX_COPIED_BYTES)
    except OSError as error:
        raise UsageError(f"'{file}' cannot be used for an eval: {error.strerror}") from error
    if len(data) > MAX_COPIED_BYTES:
        raise UsageError(f"'{file}' cannot be used for an eval: it has more than {MAX_COPIED_BYTES} bytes")
    return data


def _walk(root: Path, base: Path) -> Iterator[tuple[str, Path]]:
    if not root.is_dir() or not root.is_relative_to(base) or not _lies_in(root, base):
        return
    for file in sorted(root.rglob("*")):
        parts = file.relative_to(base).parts
        if (
            not SKIPPED_FOLDERS.intersection(parts)
            and file.is_file()
            and not file.is_symlink()
            and _lies_in(file, base)
        ):
            yield file.relative_to(base).as_posix(), file


def _lies_in(path: Path, base: Path) -> bool:
    return is_contained(str(path), base=os.path.realpath(base))


def get_target(host: Host, name: str) -> Target:
    """Get a target by name, `kind:name`, or folder of a skill. Raises `UsageError` if none or several match."""
    kind, _, rest = name.partition(":")
    if kind in ("skill", "agent", "task") and rest:
        found = [each for each in _find(host, rest) if each.kind == kind]
    else:
        path = Path(name)
        folder = path.parent if path.name == FILE_NAME else path
        if folder.is_dir() and not isinstance(get_skill_file(folder), Problem):
            return _open_skill(host, _load_folder(host, folder.resolve()))
        found = list(_find(host, name))
    if not found:
        known = [f"{each.kind}:{each.id}" for each in list_targets(host)]
        raise UsageError(
            f"Unknown skill, agent or task {name!r}",
            hint=hint_nearest(name, [each.partition(":")[2] for each in known])
            or (f"With evals: {', '.join(known)}" if known else "`agent skills list --all` lists the skills"),
        )
    if len(found) > 1:
        names = ", ".join(f"{each.kind}:{each.id}" for each in found)
        raise UsageError(f"{name!r} is ambiguous: {names}", hint="Use one of these names")
    chosen = found[0]
    if chosen.package is not None:
        return _open_skill(host, chosen.package)
    return _open_definition(host, chosen.kind, chosen.id)


def list_targets(host: Host) -> list[Target]:
    """Return every target with evals: active skills, agents and tasks."""
    skills = [_open_skill(host, package) for package in get_skills(host).packages]
    sets = load_yaml_sets(host.workspace).sets
    others = dict.fromkeys(_Match(each.kind, each.target) for each in sets if each.kind != "skill")
    found = [*skills, *(_open_definition(host, each.kind, each.id) for each in others)]
    return [target for target in found if target.cases or target.triggers]


class _Match(NamedTuple):
    kind: TargetKind
    id: str
    package: SkillPackage | None = None


def _find(host: Host, name: str) -> Iterator[_Match]:
    package = get_all_skills(host).find(name)
    if package is not None and is_called(package.definition, name):
        yield _Match("skill", package.definition.name, package)
    if (agent := list_definitions(host.workspace, "agent").get(fold_id(name))) is not None:
        yield _Match("agent", agent.id)
    if (task := list_definitions(host.workspace, "task").get(fold_id(name))) is not None:
        yield _Match("task", task.id)


def _load_folder(host: Host, folder: Path) -> SkillPackage:
    """Load a skill by folder. An installed one keeps its trust state."""
    known = [package for package in get_all_skills(host).packages if package.folder.resolve() == folder]
    if known:
        return known[0]
    reading = load_skill(folder)
    if reading.skill is None:
        raise SkillError(f"Skill in '{folder}' cannot be loaded", hint=reading.problems[0].render())
    is_brought = not host.trust.is_trusted and folder.is_relative_to(host.workspace.resolve())
    return SkillPackage(definition=reading.skill, folder=folder, source="directory", is_withheld=is_brought)


def _open_skill(host: Host, package: SkillPackage) -> Target:
    name = package.definition.name
    reading = read_evals(package.folder, skill_name=name)
    own = [
        SourcedCase(
            case=case,
            folder=package.folder,
            recordings=package.folder / EVALS / "recordings",
            file=f"{EVALS}/evals.json",
        )
        for case in reading.cases
    ]
    shared = _open_sets(host, "skill", name)
    return Target(
        kind="skill",
        id=name,
        host=host,
        cases=(*own, *shared.cases),
        triggers=(*reading.triggers, *shared.triggers),
        problems=(*reading.problems, *shared.problems),
        package=package,
    )


class _Shared(Struct, frozen=True):
    cases: tuple[SourcedCase, ...]
    triggers: tuple[Trigger, ...]
    problems: tuple[Problem, ...]


def _open_sets(host: Host, kind: TargetKind, name: str) -> _Shared:
    loaded = load_yaml_sets(host.workspace)
    folder = host.workspace / YAML_FOLDER
    sets = [each for each in loaded.sets if each.kind == kind and fold_id(each.target) == fold_id(name)]
    cases = tuple(
        SourcedCase(case=case, folder=folder, recordings=folder / "recordings" / Path(each.file).stem, file=each.file)
        for each in sets
        for case in each.cases
    )
    files = {each.file for each in sets}
    # A file without a usable target is reported for every target, because it may belong to this one.
    usable = {each.file for each in loaded.sets}
    problems = tuple(each for each in loaded.problems if each.file in files or each.file not in usable)
    return _Shared(cases, tuple(trigger for each in sets for trigger in each.triggers), problems)


def _open_definition(host: Host, kind: TargetKind, id_: str) -> Target:
    shared = _open_sets(host, kind, id_)
    return Target(kind=kind, id=id_, host=host, cases=shared.cases, triggers=shared.triggers, problems=shared.problems)
