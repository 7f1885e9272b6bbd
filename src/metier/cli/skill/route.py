"""`agent skills route`: rank skills for a request, with scores and reasons. Calls no model."""

import os
from typing import Annotated

import typer

from metier.cli.shared.command_options import AllSkills, AsJson, SkillsDir, build_group
from metier.cli.shared.context import current_workspace
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.workspace_skills import cache_folder, open_active_catalog, open_catalog, open_places
from metier.routing.catalog import open_index
from metier.routing.embeddings import Surroundings, open_similarities
from metier.routing.prefilter import DEFAULT_MIN_SCORE, DEFAULT_TOP_K, rank_request
from metier.routing.skill import FoundSimilar, Similarities, SkillCandidate

app = build_group()


@app.command()
def route(
    request: Annotated[str, typer.Argument(help="Request to rank skills for.")],
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="Maximum number of skills.")] = DEFAULT_TOP_K,
    skills_dir: SkillsDir = None,
    with_all: AllSkills = False,
    as_json: AsJson = False,
) -> None:
    """Rank active skills for a request."""
    places = open_places(skills_dir)
    catalog = open_catalog(places) if with_all else open_active_catalog(places)
    index = open_index(catalog, cache_folder=cache_folder())
    similarities = open_similarities(
        catalog.skills,
        places.settings.embeddings,
        Surroundings(workspace=current_workspace(), environ=os.environ, cache_folder=cache_folder()),
    )
    near = _wait_for(similarities, request) if similarities is not None else FoundSimilar()
    if near.failure:
        warn_line(f"Skills are ranked by words only: {near.failure}")
    candidates = rank_request(index, request, count=count, similar=near.ranked)
    if as_json:
        write_json(
            {
                "request": request,
                "considered": len(index),
                "candidates": [_candidate_as_json(candidate) for candidate in candidates],
            }
        )
        return
    for candidate in candidates:
        write_line(f"{candidate.score:6.1f}  {candidate.skill_name}  ({candidate.reason})")
    if not candidates:
        warn_line(f"None of {len(index)} skills matches this request")
    elif max(candidate.score for candidate in candidates) < DEFAULT_MIN_SCORE:
        warn_line(f"No skill reaches {DEFAULT_MIN_SCORE:g}, the score from which one counts as a candidate by default")


def _wait_for(similarities: Similarities, request: str) -> FoundSimilar:
    import anyio  # only with embeddings is there anything to wait for

    return anyio.run(similarities.find, request)


def _candidate_as_json(candidate: SkillCandidate) -> dict[str, object]:
    return {
        "skill_name": candidate.skill_name,
        "id": candidate.skill_id,
        "score": candidate.score,
        "reason": candidate.reason,
        "named": candidate.named,
        "similarity": candidate.similarity,
        "matched": [
            {"word": match.word, "fields": match.fields, "meant": match.meant or None} for match in candidate.matched
        ],
    }
