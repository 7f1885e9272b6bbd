"""Active skills: those of the workspace, and the packages that `AGENT_SKILLS` names.

Discovery reads the disk. Selection is pure, except for the trust check, which reads the files of a package.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.files.contained_path import is_absent
from metier.definitions.files.walk import Walk
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.definitions.skills.skill import SkillReading, find_version_problem, load_skill
from metier.definitions.skills.skill_file import FILE_NAME
from metier.definitions.skills.skill_names import find_called, hint_skill, is_called, list_shared_names
from metier.definitions.skills.sources import PRECEDENCE, SKILL_FOLDERS, USER_FOLDERS, SourceKind, is_own_folder
from metier.errors import UsageError
from metier.skills.install.installed import Registry, RegistryEntry, SkillHome
from metier.skills.install.placement import find_registry
from metier.skills.package import PackageSource, SkillPackage
from metier.skills.skill_trust import is_trusted
from metier.skills.workspace_trust import MADE_HERE, WorkspaceTrust

type Word = Literal["all", "all-untrusted", "none"]
type Selection = Word | tuple[str, ...]

_KINDS: dict[PackageSource, SourceKind] = {
    "directory": "folder",
    "workspace": "workspace",
    "bundled": "bundled",
    "installed": "user",
    "user": "user",
}
OPT_IN: tuple[PackageSource, ...] = ("bundled", "installed", "user")
"""Packages that are active only if the user or an agent names them."""


class SkillRoots(Struct, frozen=True, kw_only=True):
    """Folders of skills. A missing folder counts as empty."""

    home: SkillHome
    bundled: Path | None = None
    user: tuple[Path, ...] = ()
    """Additional folders of the user, such as `~/.agents/skills`."""
    workspace: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    """Folders from `--skills-dir` or `skills.dir`."""
    within: Path | None = None
    """The workspace, which links of its skills must not leave. Links of other skills must not leave their root."""
    withheld: frozenset[Path] = frozenset()
    """Folders that came with an untrusted clone."""
    is_home_unusable: bool = False
    """True if the registry is unusable, so that no installed skill is loaded."""


def build_roots(
    *,
    home: Path,
    workspace: Path,
    bundled: Path | None,
    directories: Sequence[Path] = (),
    trust: WorkspaceTrust = MADE_HERE,
) -> SkillRoots:
    """Return the default folders of a user with the home folder `home`, and of a workspace."""
    own, (first, *others) = _join(workspace, SKILL_FOLDERS), _join(home, USER_FOLDERS)
    return SkillRoots(
        home=SkillHome(first),
        bundled=bundled,
        user=tuple(others),
        workspace=own,
        directories=tuple(directories),
        within=workspace,
        withheld=frozenset() if trust.is_trusted else frozenset((*own, *_list_inside(directories, workspace, trust))),
    )


@lru_cache(maxsize=8)
def _join(root: Path, folders: tuple[str, ...]) -> tuple[Path, ...]:
    """Join paths. Cached, because parsing a path is slow on its first use."""
    return tuple(root / folder for folder in folders)


def _list_inside(directories: Sequence[Path], workspace: Path, trust: WorkspaceTrust) -> Iterator[Path]:
    """Return the folders inside the workspace that the user did not name."""
    for directory in directories:
        # Compare the path and the real path: a link that leads out of the workspace still belongs to the workspace.
        places = (Path(os.path.abspath(directory)), directory.resolve())  # noqa: PTH100  links must not be followed
        roots = (Path(os.path.abspath(workspace)), workspace.resolve())  # noqa: PTH100
        if not trust.is_directory_named and any(place.is_relative_to(root) for place in places for root in roots):
            yield directory


class BrokenSkill(Struct, frozen=True, kw_only=True):
    """A folder with a `SKILL.md` that cannot be loaded."""

    name: str
    """Canonical ID; the name could not be read."""
    folder: Path
    source: PackageSource
    reason: Problem


class FoundSkills(Struct, frozen=True, kw_only=True):
    """Every skill that is available to the workspace, active or not."""

    packages: tuple[SkillPackage, ...] = ()
    problems: tuple[Problem, ...] = ()
    broken: tuple[BrokenSkill, ...] = ()
    passed_over: tuple[Problem, ...] = ()
    """Unreadable folders."""
    damage: Problem | None = None
    """Why installed skills were not loaded."""

    def find(self, name: str) -> SkillPackage | None:
        """Find the skill of highest precedence with this name or ID, active or not."""
        ranked = sorted(self.packages, key=_rank)
        return find_package(ranked, name)

    def find_broken(self, name: str) -> BrokenSkill | None:
        """Find a broken skill by its ID or the ID's last part."""
        wanted = canonical_name(name)
        return next((skill for skill in self.broken if wanted in (skill.name, skill.name.rpartition("/")[2])), None)


class Activation(Struct, frozen=True, kw_only=True):
    packages: tuple[SkillPackage, ...]
    """One package per name, sorted by canonical name."""
    problems: tuple[Problem, ...] = ()


class _Loaded(Struct, frozen=True, kw_only=True):
    id: str
    reading: SkillReading
    folder: Path
    source: PackageSource
    entry: RegistryEntry | None
    is_withheld: bool
    real: Path
    """Real path of the folder."""


def parse_selection(text: str) -> Selection:
    """Parse the value of `AGENT_SKILLS`: names separated by commas, or a keyword."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    words = [name.lower() for name in names if name.lower() in ("all", "all-untrusted", "none")]
    if words and len(names) > 1:
        raise UsageError(f"AGENT_SKILLS has the word {words[0]!r} in a list", hint="The word stands alone")
    match words:
        case ["all"]:
            return "all"
        case ["all-untrusted"]:
            return "all-untrusted"
        case ["none"]:
            return "none"
        case _:
            return names or "none"


def find_package(packages: Iterable[SkillPackage], name: str) -> SkillPackage | None:
    """Find a package by name, else by ID."""
    by_definition = {id(package.definition): package for package in packages}
    found = find_called((package.definition for package in by_definition.values()), name)
    return by_definition[id(found)] if found is not None else None


def get_packages(roots: SkillRoots) -> FoundSkills:
    """Load every skill in the roots. Continues after broken ones."""
    registry, damage = find_registry(roots.home)
    if damage is not None:
        # The registry records which of these were installed and which bytes the user trusted.
        roots = replace(roots, is_home_unusable=True)
    packages: list[SkillPackage] = []
    problems: list[Problem] = []
    broken: list[BrokenSkill] = []
    seen: set[Path] = set()
    passed_over: list[Problem] = []
    for loaded in map(_refuse_version, _load_all(roots, registry, passed_over)):
        # Several roots may lead to the same folder by links.
        if loaded.real in seen:
            continue
        seen.add(loaded.real)
        problems.extend(loaded.reading.problems)
        package = _package(loaded)
        if package is None:
            broken.append(_broken(loaded))
        else:
            packages.append(package)
    return FoundSkills(
        packages=_use_ids_for_shared_names(packages),
        problems=tuple(problems),
        broken=tuple(broken),
        passed_over=tuple(passed_over),
        damage=damage,
    )


def _use_ids_for_shared_names(packages: Sequence[SkillPackage]) -> tuple[SkillPackage, ...]:
    """Replace names that skills of one source share by their IDs, so that each can be selected."""
    places = {_place(package) for package in packages}
    shared = {
        place: list_shared_names(package.definition for package in packages if _place(package) == place)
        for place in places
    }
    return tuple(
        replace(package, definition=dataclasses.replace(package.definition, name=package.definition.id))
        # Installed skills have the names of the registry.
        if _name(package) in shared[_place(package)] and package.source != "installed"
        else package
        for package in packages
    )


def _place(package: SkillPackage) -> PackageSource:
    """Return the source for comparing names: installed packages share a folder with the user's own skills."""
    return "user" if package.source == "installed" else package.source


def activate(found: FoundSkills, selection: Selection) -> Activation:
    """Select active skills, then resolve duplicate names. Case is ignored, and `_` equals `-`."""
    packages = [package for package in found.packages if package.source in OPT_IN]
    own = [package for package in found.packages if package.source not in OPT_IN]
    problems: list[Problem] = [found.damage] if found.damage is not None else []
    match selection:
        case "none":
            chosen = []
        case "all-untrusted":
            chosen = packages
        case "all":
            chosen = [package for package in packages if is_trusted(package)]
            if not chosen:
                problems.append(_nothing_trusted())
        case names:
            chosen = _choose(packages, names, found=found, problems=problems)
    problems += [describe_broken(broken.name, broken) for broken in found.broken if broken.source not in OPT_IN]
    winners = _resolve(own + chosen, problems)
    return Activation(packages=winners, problems=tuple(problems))


def _choose(
    packages: Sequence[SkillPackage], names: Sequence[str], *, found: FoundSkills, problems: list[Problem]
) -> list[SkillPackage]:
    chosen: list[SkillPackage] = []
    for name in names:
        matching = [package for package in packages if is_called(package.definition, name)]
        trusted = [package for package in matching if is_trusted(package)]
        chosen.extend(package for package in trusted if package not in chosen)
        if matching and not trusted:
            problems.append(_untrusted(matching[0]))
        elif not matching and not any(is_called(package.definition, name) for package in found.packages):
            problems.append(_missing(name, found))
    return chosen


def _rank(package: SkillPackage) -> tuple[int, bool]:
    """Return the precedence of a package. An installed skill precedes one that the user added by hand."""
    return PRECEDENCE.index(_KINDS[package.source]), package.source == "user"


def _resolve(packages: Sequence[SkillPackage], problems: list[Problem]) -> tuple[SkillPackage, ...]:
    winners: dict[str, SkillPackage] = {}
    for package in sorted(packages, key=_rank):
        winner = winners.setdefault(_name(package), package)
        if winner is not package:
            message = f"Skill {package.definition.name!r} of {package.source} is hidden by the one of {winner.source}"
            problems.append(
                Problem(
                    severity="warning",
                    code="shadowed_skill",
                    message=message,
                    file=str(package.folder),
                    hint=f"Used is {winner.folder}; rename one of them to have both",
                    subject=package.definition.name,
                )
            )
    return tuple(winners[name] for name in sorted(winners))


def _nothing_trusted() -> Problem:
    return Problem(
        severity="warning",
        code="no_trusted_skills",
        message="No trusted skills installed",
        hint="Install skills with `agent skill add`, or use AGENT_SKILLS=all-untrusted",
    )


def hint_trust(package: SkillPackage) -> str:
    return f"Review it, then run `agent skill trust {_name(package)}`"


def _untrusted(package: SkillPackage) -> Problem:
    what = "changed since it was trusted" if package.trusted_digest else "is not trusted"
    return Problem(
        severity="warning",
        code="skill_not_trusted",
        message=f"Skill {package.definition.name!r} {what} and is left out",
        file=str(package.folder),
        hint=hint_trust(package),
    )


def _missing(name: str, found: FoundSkills) -> Problem:
    broken = found.find_broken(name)
    if broken:
        return describe_broken(name, broken)
    hint = hint_skill(name, map(_name, found.packages)) or "Run `agent skills list` to list skills"
    message = f"No skill is called {name!r}"
    return Problem(severity="error", code="unknown_skill", message=message, hint=hint, subject=name)


def describe_broken(name: str, broken: BrokenSkill) -> Problem:
    reason = broken.reason
    message = f"Skill {name!r} cannot be loaded: {reason.message}"
    return Problem(severity="error", code="skill_broken", message=message, file=reason.file, line=reason.line)


def _load_all(roots: SkillRoots, registry: Registry, passed_over: list[Problem]) -> Iterator[_Loaded]:
    entries = {roots.home.folder_of(entry): entry for entry in registry.skills.values()}
    if roots.bundled:
        loaded, problems = _load_bundled(roots.bundled)
        yield from loaded
        passed_over.extend(problems)
    for root, source in _list_places(roots):
        if is_absent(root):  # most of them
            continue
        is_inside = roots.within is not None and source in ("workspace", "directory")
        within = roots.within if is_inside and root.is_relative_to(roots.within or root) else None
        is_own = within is not None and is_own_folder(root, within)
        walk = Walk(root, FILE_NAME, within=within)
        for found in walk:
            folder = Path(found.path).parent
            entry = entries.get(folder) if source == "user" else None
            # Trusting a skill that the user added by hand creates an entry too, without a source.
            kind: PackageSource = "installed" if entry and entry.is_installed else source
            yield _Loaded(
                id=found.id,
                reading=load_skill(folder, own=is_own, id=found.id, within=found.within),
                folder=folder,
                source=kind,
                entry=entry,
                is_withheld=root in roots.withheld,
                real=folder.resolve(),
            )
        passed_over.extend(walk.problems)


@cache
def _load_bundled(root: Path) -> tuple[tuple[_Loaded, ...], tuple[Problem, ...]]:
    """Load the bundled skills. Cached, because every run has them and they are about half of its catalog."""
    walk = Walk(root, FILE_NAME)
    loaded: list[_Loaded] = []
    for found in walk:
        folder = Path(found.path).parent
        reading = load_skill(folder, id=found.id, within=found.within)
        loaded.append(
            _Loaded(
                id=found.id,
                reading=reading,
                folder=folder,
                source="bundled",
                entry=None,
                is_withheld=False,
                real=folder.resolve(),
            )
        )
    return tuple(loaded), tuple(walk.problems)


def _list_places(roots: SkillRoots) -> Iterator[tuple[Path, PackageSource]]:
    for root in roots.user if roots.is_home_unusable else (roots.home.root, *roots.user):
        yield root, "user"
    for root in roots.workspace:
        yield root, "workspace"
    for root in roots.directories:
        yield root, "directory"


def _refuse_version(loaded: _Loaded) -> _Loaded:
    """Report a skill that does not support this version of Metier."""
    skill = loaded.reading.skill
    problem = find_version_problem(skill) if skill is not None else None
    if problem is None:
        return loaded
    return replace(loaded, reading=SkillReading(None, (problem,)))


def _package(loaded: _Loaded) -> SkillPackage | None:
    definition, entry = loaded.reading.skill, loaded.entry
    if definition is None:
        return None
    if entry is not None:
        definition = dataclasses.replace(definition, name=entry.name)
    return SkillPackage(
        definition=definition,
        folder=loaded.folder,
        source=loaded.source,
        trusted_digest=entry.trusted_digest if entry and entry.trusted else None,
        commit=entry.commit_sha if entry else None,
        is_withheld=loaded.is_withheld,
    )


def _broken(loaded: _Loaded) -> BrokenSkill:
    reason = next(problem for problem in loaded.reading.problems if problem.severity == "error")
    name = canonical_name(loaded.id)
    return BrokenSkill(name=name, folder=loaded.folder, source=loaded.source, reason=reason)


def _name(package: SkillPackage) -> str:
    return canonical_name(package.definition.name)
