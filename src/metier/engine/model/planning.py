"""The part of a run before the model speaks: catalog, candidates, disclosure."""

from collections.abc import Sequence
from pathlib import Path

from metier.context.disclosure import Disclosure, DisclosureLimits, disclose_files, disclose_overview, disclose_scripts
from metier.context.tokens import estimate_tokens
from metier.engine.actions import Disclose
from metier.engine.entries import (
    CatalogLoaded,
    ContextDisclosed,
    DisclosedPiece,
    RunFailed,
    SimilarSkill,
    SkillsRanked,
)
from metier.engine.journal import RunLog
from metier.engine.model.prompting import build_catalog, list_described
from metier.engine.services import Services
from metier.engine.state import RunState
from metier.errors import NoSkillMatches
from metier.events import Candidate, DisclosedFile, SkillDisclosureLoaded, SkillLoadFailed
from metier.routing.prefilter import prefilter
from metier.routing.similar import Similar
from metier.routing_events import EmbeddingsUnavailable


async def load_catalog(log: RunLog, services: Services) -> None:
    names = tuple(package.definition.name for package in services.shelf.packages.values())
    problems = services.shelf.problems
    for problem in problems:
        file = Path(problem.file)
        # Problems are about a `SKILL.md`, or about the folder itself.
        name = file.parent.name if file.suffix else file.name
        log.emit(
            SkillLoadFailed(
                skill_name=name, path=problem.file, code=problem.code, reason=problem.message, line=problem.line
            )
        )
    await log.record(CatalogLoaded(skills=names, problems=len(problems)))


async def rank_skills(log: RunLog, services: Services) -> None:
    """All skills are ranked; those that are no candidates keep their names in the prompt."""
    assert log.state.started is not None
    task = log.state.started.task
    found = await services.shelf.find_similar(services.clean(task))
    if found.failure:
        log.emit(EmbeddingsUnavailable(reason=found.failure))
    try:
        await log.record(build_ranking(task, services, similar=found.ranked))
    except NoSkillMatches as error:
        await log.record(RunFailed(reason="no_skill_candidates", message=error.message))
        return
    if catalog := build_catalog(log.state, services):
        log.emit(_describe_catalog(catalog, log.state, services))


def _describe_catalog(catalog: str, state: RunState, services: Services) -> SkillDisclosureLoaded:
    """Stage 0: the descriptions one by one; the total is the whole layer, with the names of the other skills."""
    files = [
        DisclosedFile(path=f"{name}/SKILL.md", section="description", bytes=_size(text), tokens=estimate_tokens(text))
        for name, text in services.shelf.describe(list_described(state, services))
    ]
    return SkillDisclosureLoaded(
        skill_name="",
        stage=0,
        files=tuple(files),
        total_bytes=_size(catalog),
        total_tokens=estimate_tokens(catalog),
    )


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def build_ranking(task: str, services: Services, *, similar: Sequence[Similar] = ()) -> SkillsRanked:
    """The candidates for a task. Raises `NoSkillMatches` where the settings want one and there is none."""
    options = services.skills
    chosen = prefilter(
        services.shelf.index,
        task,
        top_k=options.prefilter_top_k,
        min_score=options.prefilter_min_score,
        strategy=options.prefilter_zero_candidate_strategy if len(services.shelf.index) else "fallback_all_skills",
        similar=similar,
    )
    candidates = tuple(
        Candidate(skill_name=candidate.skill_name, score=round(candidate.score, 1), reason=candidate.reason)
        for candidate in chosen.candidates
    )
    strategy = options.prefilter_zero_candidate_strategy if chosen.fell_back else ""
    return SkillsRanked(
        candidates=candidates,
        considered=chosen.considered,
        strategy=strategy,
        min_score=options.prefilter_min_score,
        similar=tuple(SimilarSkill(skill_name=each.skill_name, score=each.score) for each in similar),
    )


async def disclose(action: Disclose, log: RunLog, services: Services) -> None:
    """The overview and the scripts of the skill in charge when it is new, and whatever was asked for by name."""
    if not action.skill or services.shelf.find(action.skill) is None:
        await log.record(ContextDisclosed())
        return
    skill = services.shelf.text(action.skill)
    found: list[Disclosure] = []
    if log.state.needs_overview:
        found += [disclose_overview(skill, get_disclosure_limits(services)), disclose_scripts(skill)]
    if action.paths:
        shown = frozenset(
            piece.file.path for piece in log.state.pieces if piece.skill == skill.name and piece.stage == 2
        )
        reader = services.shelf.reader(action.skill)
        found.append(
            disclose_files(skill, action.paths, read=reader, limits=get_disclosure_limits(services), shown=shown)
        )
    pieces = [piece for disclosure in found for piece in await _keep(disclosure, services)]
    refused = tuple(reason for disclosure in found for reason in disclosure.refused)
    await log.record(ContextDisclosed(pieces=tuple(pieces), refused=refused))


def get_disclosure_limits(services: Services) -> DisclosureLimits:
    return DisclosureLimits(
        max_reference_bytes=services.skills.disclosure_max_reference_bytes,
        max_reference_tokens=services.skills.disclosure_max_reference_tokens,
        inline_body_tokens=services.skills.inline_body_tokens,
    )


async def _keep(disclosure: Disclosure, services: Services) -> list[DisclosedPiece]:
    """The text goes into a blob: a resumed run shows the model the same bytes, whatever happened to the file."""
    kept: list[DisclosedPiece] = []
    for piece, file in zip(disclosure.pieces, disclosure.files, strict=True):
        digest = await services.store.put_blob(services.clean(piece.text).encode("utf-8", "surrogatepass"))
        kept.append(DisclosedPiece(skill=piece.skill, stage=piece.stage, file=file, digest=digest))
    return kept
