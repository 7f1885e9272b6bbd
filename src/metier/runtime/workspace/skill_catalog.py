"""The skills and tasks of a workspace: all of them, their search index, and their status."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.definitions.references import find_limit
from metier.definitions.skills.scripts import discover_scripts, report_missing_scripts
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.sources import get_bundled_folder
from metier.engine.skill_index import SkillIndex, build_skill_index
from metier.errors import SkillNotFound
from metier.events.skill import SkillWithoutTools
from metier.routing.embeddings import Surroundings, open_similarities
from metier.routing.prefilter import rank_request
from metier.routing.skill import SkillCandidate
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.host import Host
from metier.skills.activation import Activation, BrokenSkill, FoundSkills, activate, build_roots, get_packages
from metier.skills.capabilities_report import CapabilityReport, build_report
from metier.skills.needs import SkillNeeds, describe_lacks, list_dependencies
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import TreeDigest, digest_tree, is_trusted
from metier.tools.toolbox import Toolbox
from metier.tools.web.web_fetch import WebAccess

_ANYWHERE = WebAccess()
_MAX_NAMED_TOOLS = 8
_MAX_PROBED = 8


class ActiveSkills(NamedTuple):
    packages: tuple[SkillPackage, ...]
    problems: tuple[Problem, ...]


def get_skills(host: Host) -> ActiveSkills:
    """Return the active skills of this workspace, and the problems of the others."""
    found = get_all_skills(host)
    activation = activate(found, host.settings.skills.enabled)
    return ActiveSkills(activation.packages, (*activation.problems, *list_unread(found, host.workspace)))


def leave_out_incomplete(skills: ActiveSkills) -> ActiveSkills:
    """Leave out the skills whose listed scripts are missing, and report them."""
    missing = {package.folder: report_missing_scripts(package.definition) for package in skills.packages}
    problems = [
        replace(each, message=f"Skill {each.subject!r} cannot be loaded: {each.message[0].lower()}{each.message[1:]}")
        for reported in missing.values()
        for each in reported
    ]
    loaded = tuple(package for package in skills.packages if not missing[package.folder])
    return ActiveSkills(loaded, (*skills.problems, *problems))


def open_needs(host: Host) -> SkillNeeds:
    """Return a check that tells whether a skill is active in this workspace, and why not."""
    # A function, because most skills mention no others, and then nothing has to be read.
    return SkillNeeds(lambda: get_all_skills(host), host.settings.skills.enabled)


def list_blocked(host: Host, packages: Sequence[SkillPackage]) -> tuple[Problem, ...]:
    """List the problems that prevent calls of these skills' scripts and code, as `agent check` reports them."""
    needs = open_needs(host)
    return tuple(
        problem
        for package in packages
        if list_dependencies(package.definition)
        for problem in describe_lacks(package.definition, needs)
        if problem.severity == "error"
    )


def list_skill_notices(packages: Iterable[SkillPackage], tools: Toolbox) -> list[SkillWithoutTools]:
    """Warn about a run's skills whose tool list has none of its tools."""
    names = tools.names()
    limits = ((package.definition, find_limit(package.definition.tools)) for package in packages)
    bare = [skill for skill, limit in limits if limit and names and tools.resolve(limit).isdisjoint(names)]
    return [SkillWithoutTools(skill_name=skill.name, message=describe_bare_skill(skill, names)) for skill in bare]


def is_bare_skill(skill: SkillDefinition, tools: Collection[str]) -> bool:
    """Return True if both lists name tools but have none in common: the skill then works without tools."""
    limit = find_limit(skill.tools)
    return bool(limit) and bool(tools) and not set(limit or ()) & set(tools)


def describe_bare_skill(skill: SkillDefinition, tools: Collection[str]) -> str:
    names = sorted(tools)
    shown = names if len(names) <= _MAX_NAMED_TOOLS else [*names[:_MAX_NAMED_TOOLS], "others"]
    return (
        f"While skill {skill.name!r} is in charge no tool is left: it lists {', '.join(skill.tools or ())}, "
        f"and the agent has {', '.join(shown)}"
    )


def list_unread(found: FoundSkills, workspace: Path) -> tuple[Problem, ...]:
    """List folders and files of the workspace that were not read, such as links that lead out of it."""
    return tuple(
        problem
        for problem in found.passed_over
        if problem.severity == "error" and Path(problem.file).is_relative_to(workspace)
    )


def get_all_skills(host: Host) -> FoundSkills:
    """Return every skill that could be active here."""
    directory = host.workspace / host.settings.skills.dir
    roots = build_roots(
        home=host.home,
        workspace=host.workspace,
        bundled=get_bundled_folder(),
        directories=(directory,) if directory.is_dir() else (),
        trust=host.trust,
    )
    return get_packages(roots)


def activate_named(found: FoundSkills, names: Sequence[str]) -> Activation:
    """Activate the skills of the workspace, and trusted packages with these names."""
    return activate(found, tuple(names) or "none")


def open_skill_index(
    packages: Sequence[SkillPackage],
    host: Host,
    *,
    web: WebAccess = _ANYWHERE,
    problems: Sequence[Problem] = (),
    is_asking: bool = True,
) -> SkillIndex:
    """Open the skill index; `web` restricts its requests. A run that only plans is not `is_asking`: it sends none.

    A local embedding model is used in any case, so that a plan or preview has the same skills as the run.
    """
    skill_index = build_skill_index(packages, workspace=host.workspace, problems=problems, cache_folder=host.cache)
    options = host.settings.embeddings
    if options is None or not (is_asking or options.folder):
        return skill_index
    similarities = open_similarities(
        [package.definition for package in packages],
        options,
        Surroundings(workspace=host.workspace, environ=host.environ, cache_folder=host.cache),
        allowed_domains=web.allowed_domains,
        denied_domains=web.denied_domains,
    )
    # An embeddings service gets the request, so it is redacted like everything that leaves the machine.
    return replace(skill_index, similarities=similarities, redact=build_host_cleaner(host).text)


class ListedSkill(Struct, frozen=True, kw_only=True):
    package: SkillPackage
    is_active: bool
    is_trusted: bool
    scripts: int

    @property
    def name(self) -> str:
        return self.package.definition.name


class SkillList(Struct, frozen=True, kw_only=True):
    skills: tuple[ListedSkill, ...]
    """Skills by name, the active ones first."""
    broken: tuple[BrokenSkill, ...]


class SkillDetails(Struct, frozen=True, kw_only=True):
    skill: ListedSkill
    digest: TreeDigest
    report: CapabilityReport


def list_skills(host: Host) -> SkillList:
    """List every skill that could be active here. Executes nothing."""
    found = get_all_skills(host)
    active = {package.folder for package in activate(found, host.settings.skills.enabled).packages}
    listed = [
        ListedSkill(
            package=package,
            is_active=package.folder in active,
            is_trusted=is_trusted(package),
            scripts=len(discover_scripts(package.definition)),
        )
        for package in found.packages
    ]
    ordered = sorted(listed, key=lambda each: (not each.is_active, canonical_name(each.name)))
    return SkillList(skills=tuple(ordered), broken=tuple(found.broken))


def describe_skill(host: Host, name: str) -> SkillDetails:
    """Describe the capabilities of a skill from its files. Raises `SkillNotFound`."""
    wanted = canonical_name(name)
    found = [each for each in list_skills(host).skills if canonical_name(each.name) == wanted]
    if not found:
        raise SkillNotFound(f"No skill is called {name!r}", hint="The page of skills lists all of them")
    package = found[0].package
    digest = digest_tree(package.folder)
    return SkillDetails(skill=found[0], digest=digest, report=build_report(package.definition, digest))


async def probe_skills(host: Host, request: str) -> Sequence[SkillCandidate]:
    """Rank the active skills for this request as a run would. No model is called."""
    packages, _ = await run_sync(get_skills, host)
    skill_index = await run_sync(open_skill_index, packages, host)
    near = await skill_index.get_similar(request)
    return (
        rank_request(skill_index.index, request, count=_MAX_PROBED, similar=near.ranked)
        if len(skill_index.index)
        else ()
    )
