"""The part of a run before the model's first reply: catalog, candidates, disclosure."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from metier.context.disclosure import Disclosure, DisclosureLimits, disclose_files, disclose_overview, disclose_scripts
from metier.context.tokens import estimate_tokens
from metier.definitions.problems import Problem
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.skill_rules import scan_outside_scripts
from metier.engine.actions import Disclose
from metier.engine.entries.run import RunFailed
from metier.engine.entries.skill import (
    RANKING_VERSION,
    CatalogLoaded,
    ContextDisclosed,
    DisclosedPiece,
    SimilarSkill,
    SkillsRanked,
)
from metier.engine.journal import RunLog
from metier.engine.model.prompt import build_catalog, list_described
from metier.engine.projection import SUMMARY_CHARACTERS
from metier.engine.redaction import redact
from metier.engine.services import Services
from metier.engine.state.run_state import RunState
from metier.errors import NoSkillMatches
from metier.events.skill import (
    Candidate,
    DisclosedFile,
    EmbeddingsUnavailable,
    SkillDisclosureLoaded,
    SkillLoadFailed,
    SkillPrefilterCompleted,
    SkillProblemFound,
)
from metier.routing.prefilter import prefilter
from metier.routing.prefilter import rank_skills as rank_index
from metier.routing.skill import Similar, SkillCandidate

_LOADED_CODES = frozenset(
    {
        "no_trusted_skills",
        "registry_unusable",
        "script_outside",
        "shadowed_skill",
        "tool_collision",
        "unknown_skill",
        "unusable_skill",
    }
)
"""Codes of problems that are not about a single skill that can't be loaded."""


async def load_catalog(log: RunLog, services: Services) -> None:
    names = tuple(package.definition.name for package in services.skill_index.packages.values())
    report_skill_problems(log, services)
    problems = len(services.skill_index.problems)
    await log.record(CatalogLoaded(skills=names, problems=problems, duration_ms=services.skill_index.load_ms))


def report_skill_problems(log: RunLog, services: Services) -> None:
    """Emit an event for each skill that can't be loaded and for each unknown name."""
    for problem in services.skill_index.problems:
        log.emit(_describe_problem(problem))


def _describe_problem(problem: Problem) -> SkillLoadFailed | SkillProblemFound:
    file = Path(problem.file)
    # Problems are about a `SKILL.md`, or about the folder itself.
    name = problem.subject or (file.parent.name if file.suffix else file.name)
    facts = {"skill_name": name, "path": problem.file, "code": problem.code, "reason": problem.message}
    if problem.code in _LOADED_CODES:
        return SkillProblemFound(**facts, line=problem.line, hint=problem.hint)
    return SkillLoadFailed(**facts, line=problem.line)


async def rank_skills(log: RunLog, services: Services) -> None:
    """Rank all skills. The prompt still names those that are not candidates."""
    assert log.state.started is not None
    if (recorded := services.recall_ranking()) is not None:
        # In a replay: this version can't repeat the ranking of another one.
        await log.record(recorded)
        return
    task = log.state.started.task
    found = await services.skill_index.get_similar(task)
    if found.failure:
        log.emit(EmbeddingsUnavailable(reason=found.failure))
    try:
        await log.record(build_ranking(task, services, similar=found.ranked))
    except NoSkillMatches as error:
        log.emit(_describe_scores(task, services, similar=found.ranked))
        await log.record(RunFailed(reason="no_skill_candidates", message=error.message))
        return
    if catalog := build_catalog(log.state, services):
        log.emit(_describe_catalog(catalog, log.state, services))


def _describe_scores(task: str, services: Services, *, similar: Sequence[Similar]) -> SkillPrefilterCompleted:
    """Describe the best scores of a request that matches no skill, so that the user can adjust it or the settings."""
    options = services.skills
    index = services.skill_index.index
    ranked = rank_index(index, task, count=options.prefilter_top_k, similar=similar)
    return SkillPrefilterCompleted(
        query=task[:SUMMARY_CHARACTERS],
        candidates=_list_candidates(ranked),
        considered=len(index),
        strategy=options.prefilter_zero_candidate_strategy,
    )


def _list_candidates(ranked: Iterable[SkillCandidate]) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(skill_name=candidate.skill_name, score=round(candidate.score, 1), reason=candidate.reason)
        for candidate in ranked
    )


def _describe_catalog(catalog: str, state: RunState, services: Services) -> SkillDisclosureLoaded:
    """Describe stage 0. Files are the descriptions; the total includes the names of the other skills."""
    files = [
        DisclosedFile(path=f"{name}/SKILL.md", section="description", bytes=_size(text), tokens=estimate_tokens(text))
        for name, text in services.skill_index.describe(list_described(state, services))
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
    """Return the candidates for a task. Raises `NoSkillMatches` if the settings require one and there is none."""
    options = services.skills
    chosen = prefilter(
        services.skill_index.index,
        task,
        top_k=options.prefilter_top_k,
        min_score=options.prefilter_min_score,
        strategy=options.prefilter_zero_candidate_strategy
        # A workspace without skills is no failure to find one.
        if len(services.skill_index.index)
        else "fallback_all_skills",
        similar=similar,
    )
    strategy = options.prefilter_zero_candidate_strategy if chosen.fell_back else ""
    return SkillsRanked(
        candidates=_list_candidates(chosen.candidates),
        considered=chosen.considered,
        strategy=strategy,
        min_score=options.prefilter_min_score,
        similar=tuple(SimilarSkill(skill_name=each.skill_name, score=each.score) for each in similar),
        version=RANKING_VERSION,
    )


async def disclose(action: Disclose, log: RunLog, services: Services) -> None:
    """Disclose the overview and scripts of a new skill in charge, and requested files."""
    if not action.skill or services.skill_index.find(action.skill) is None:
        await log.record(ContextDisclosed())
        return
    skill = services.skill_index.text(action.skill)
    found: list[Disclosure] = []
    if log.state.needs_overview:
        for problem in _list_outside_scripts(services.skill_index.get(action.skill).definition):
            log.emit(_describe_problem(problem))
        found += [disclose_overview(skill, get_disclosure_limits(services)), disclose_scripts(skill)]
    if action.paths:
        shown = frozenset(
            piece.file.path for piece in log.state.pieces if piece.skill == skill.name and piece.stage == 2
        )
        reader = services.skill_index.reader(action.skill)
        found.append(
            disclose_files(skill, action.paths, read=reader, limits=get_disclosure_limits(services), shown=shown)
        )
    pieces = [piece for disclosure in found for piece in await _store_pieces(disclosure, services)]
    refused = tuple(reason for disclosure in found for reason in disclosure.refused)
    await log.record(ContextDisclosed(pieces=tuple(pieces), refused=refused))


def _list_outside_scripts(skill: SkillDefinition) -> list[Problem]:
    """Warn about each script outside of the skill's folder that its text names."""
    found = {script.written: script for script in scan_outside_scripts(skill.body, skill.folder)}
    return [
        Problem(
            severity="warning",
            code="script_outside",
            message=f"Skill {skill.name!r} names the script {script.written!r}, which is outside of its folder and is "
            "not run while the skill is in charge",
            file=str(skill.file),
            line=skill.body_line + skill.body.count("\n", 0, script.at),
            subject=skill.name,
        )
        for script in found.values()
    ]


def get_disclosure_limits(services: Services) -> DisclosureLimits:
    return DisclosureLimits(
        max_reference_bytes=services.skills.disclosure_max_reference_bytes,
        max_reference_tokens=services.skills.disclosure_max_reference_tokens,
        inline_body_tokens=services.skills.inline_body_tokens,
    )


async def _store_pieces(disclosure: Disclosure, services: Services) -> list[DisclosedPiece]:
    """Store the text as blobs: a resumed run shows the same bytes, even if the file has changed."""
    stored: list[DisclosedPiece] = []
    for piece, file in zip(disclosure.pieces, disclosure.files, strict=True):
        digest = await services.store.put_blob(redact(piece.text, services).encode("utf-8", "surrogatepass"))
        stored.append(DisclosedPiece(skill=piece.skill, stage=piece.stage, file=file, digest=digest))
    return stored
