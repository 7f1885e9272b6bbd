"""The skills of a run with what ranks them: an index of words, and embeddings where the settings want them."""

from collections.abc import Sequence
from dataclasses import replace

from metier.definitions.problems import Problem
from metier.engine.request_parts.skill_index import SkillIndex, build_shelf
from metier.routing.similar_opening import Surroundings, open_similarities
from metier.runtime.host import Host
from metier.skills.package import SkillPackage
from metier.tools.web.fetch import WebAccess

_ANYWHERE = WebAccess()


def open_shelf(
    packages: Sequence[SkillPackage],
    place: Host,
    *,
    web: WebAccess = _ANYWHERE,
    problems: Sequence[Problem] = (),
    is_asking: bool = True,
) -> SkillIndex:
    """`web` says where the agent may go. A run that only plans is not `is_asking`: it sends nothing.

    A model in a folder ranks for it too, so that a plan and a shown prompt have the skills that the run would have.
    """
    shelf = build_shelf(packages, workspace=place.workspace, problems=problems, cache_folder=place.cache)
    options = place.settings.embeddings
    if options is None or not (is_asking or options.folder):
        return shelf
    similarities = open_similarities(
        [package.definition for package in packages],
        options,
        Surroundings(workspace=place.workspace, environ=place.environ, cache_folder=place.cache),
        allowed_domains=web.allowed_domains,
        denied_domains=web.denied_domains,
    )
    return replace(shelf, similarities=similarities)
