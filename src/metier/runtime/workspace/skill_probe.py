"""The skills of a workspace as a person looks at them: how each stands, what it could do, and which would be chosen."""

from collections.abc import Sequence

from anyio.to_thread import run_sync

from metier.dataclass import dataclass
from metier.definitions.names import canonical_name
from metier.definitions.skills.scripts import discover_scripts
from metier.errors import SkillNotFound
from metier.routing.prefilter import rank_request
from metier.routing.skill import SkillCandidate
from metier.runtime.host import Host
from metier.runtime.workspace.catalog import find_all_skills, find_skills
from metier.runtime.workspace.shelf import open_shelf
from metier.skills.activation import BrokenSkill, activate
from metier.skills.capabilities_report import CapabilityReport, build_report
from metier.skills.package import SkillPackage
from metier.skills.trust.digest import TreeDigest, digest_tree
from metier.skills.trust.judgement import is_trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillStanding:
    package: SkillPackage
    is_active: bool
    is_trusted: bool
    scripts: int

    @property
    def name(self) -> str:
        return self.package.definition.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillStandings:
    skills: tuple[SkillStanding, ...]
    """By name, the active ones first."""
    broken: tuple[BrokenSkill, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillDetails:
    standing: SkillStanding
    digest: TreeDigest
    report: CapabilityReport


def list_standings(place: Host) -> SkillStandings:
    """Every skill that could be active here. Nothing of any skill is executed."""
    found = find_all_skills(place)
    active = {package.folder for package in activate(found, place.settings.skills.enabled).packages}
    standings = [
        SkillStanding(
            package=package,
            is_active=package.folder in active,
            is_trusted=is_trusted(package),
            scripts=len(discover_scripts(package.definition)),
        )
        for package in found.packages
    ]
    ordered = sorted(standings, key=lambda each: (not each.is_active, canonical_name(each.name)))
    return SkillStandings(skills=tuple(ordered), broken=tuple(found.broken))


def describe_skill(place: Host, name: str) -> SkillDetails:
    """What it could do, found by reading its files. Raises `SkillNotFound`."""
    wanted = canonical_name(name)
    found = [each for each in list_standings(place).skills if canonical_name(each.name) == wanted]
    if not found:
        raise SkillNotFound(f"No skill is called {name!r}", hint="The page of skills lists all of them")
    package = found[0].package
    digest = digest_tree(package.folder)
    return SkillDetails(standing=found[0], digest=digest, report=build_report(package.definition, digest))


async def probe_skills(place: Host, request: str, *, count: int = 8) -> Sequence[SkillCandidate]:
    """The active skills in the order in which a run would consider them for this request. Calls no model."""
    packages, _ = await run_sync(find_skills, place)
    shelf = await run_sync(open_shelf, packages, place)
    near = await shelf.find_similar(request)
    return rank_request(shelf.index, request, count=count, similar=near.ranked) if len(shelf.index) else ()
