"""Trigger evals: requests for which the skill must be chosen, and others for which it must not.

They use the same router as runs, and call no model. Missing words of the description are found by trial: each is added,
the catalog is indexed again and every request is routed again. So a word that takes requests from other skills is not
suggested.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.names import canonical_name
from metier.evals.cases import Budget, EvalCase, SkillUsed, Trigger
from metier.evals.eval_results import RunRow
from metier.evals.grading import Grade
from metier.evals.targets import SourcedCase, Target
from metier.routing.catalog import build_routable
from metier.routing.prefilter import rank_request
from metier.routing.ranking import build_index
from metier.routing.skill import RoutableSkill, SkillCandidate
from metier.routing.words import FILLER_WORDS, FUNCTION_WORDS, split_words, stem
from metier.runtime.workspace.skill_catalog import get_all_skills, get_skills

LIVE_TURNS = 2
# Each trial indexes the whole catalog again, so these two bound the time.
_MAX_TRIED = 30
_MAX_WORDS = 8
_SHORTEST = 3


class Routed(Struct, frozen=True, kw_only=True):
    """The routing result of a request."""

    trigger: Trigger
    winner: SkillCandidate | None
    """The best skill, if one reaches the minimum score."""
    own_score: float
    holds: bool


class Suggestion(Struct, frozen=True, kw_only=True):
    """Words to add to the description, with their effect."""

    words: tuple[str, ...]
    before: int
    """Number of requests that are routed correctly without these words."""
    after: int
    total: int


def list_rivals(target: Target) -> tuple[RoutableSkill, ...]:
    """Return the skills that compete for a request: the target, active ones and bundled ones."""
    assert target.package is not None, "only skills are triggered"
    host = target.host
    bundled = [package for package in get_all_skills(host).packages if package.source == "bundled"]
    packages = {
        canonical_name(package.definition.name): package
        for package in (*bundled, *get_skills(host).packages, target.package)
    }
    return tuple(build_routable(each.definition, body=each.definition.body) for each in packages.values())


def route_triggers(
    name: str, triggers: Sequence[Trigger], skills: Sequence[RoutableSkill], *, min_score: float
) -> tuple[Routed, ...]:
    index = build_index(skills)
    return tuple(
        _judge(name, trigger, rank_request(index, trigger.query, count=len(skills)), min_score=min_score)
        for trigger in triggers
    )


def _judge(name: str, trigger: Trigger, ranked: Sequence[SkillCandidate], *, min_score: float) -> Routed:
    own = next((each.score for each in ranked if canonical_name(each.skill_name) == canonical_name(name)), 0.0)
    winner = ranked[0] if ranked and ranked[0].score >= min_score else None
    is_chosen = winner is not None and canonical_name(winner.skill_name) == canonical_name(name)
    return Routed(trigger=trigger, winner=winner, own_score=own, holds=is_chosen == trigger.should_trigger)


def build_trigger_row(routed: Routed, name: str) -> RunRow:
    trigger = routed.trigger
    wanted = f"{'chooses' if trigger.should_trigger else 'leaves alone'} {name}"
    won = f"{routed.winner.skill_name} wins with {routed.winner.score:.0f}" if routed.winner else "no skill wins"
    reason = f" ({routed.winner.reason})" if routed.winner else ""
    grade = Grade(
        check="trigger",
        text=f"trigger: {wanted}",
        verdict="passed" if routed.holds else "failed",
        evidence=f"{won}{reason}; {name} has {routed.own_score:.0f}",
    )
    return RunRow(
        case_id=trigger.query,
        file=trigger.file,
        line=trigger.line,
        status="passed" if routed.holds else "failed",
        grades=(grade,),
    )


def build_trigger_cases(target: Target) -> tuple[SourcedCase, ...]:
    """Build cases that ask a model to use the skill, from the same requests."""
    assert target.package is not None, "only skills are triggered"
    folder = target.package.folder
    return tuple(
        SourcedCase(
            case=EvalCase(
                id=trigger.query,
                prompt=trigger.query,
                budget=Budget(max_turns=LIVE_TURNS),
                checks=(SkillUsed(skill=target.id, negate=not trigger.should_trigger),),
                line=trigger.line,
            ),
            folder=folder,
            recordings=folder / "evals/recordings",
            file=trigger.file,
        )
        for trigger in target.triggers
    )


def suggest_words(
    name: str, triggers: Sequence[Trigger], skills: Sequence[RoutableSkill], *, min_score: float
) -> Suggestion:
    """Find words of missed requests that would route these, and no others, to this skill."""
    own = next(skill for skill in skills if canonical_name(skill.name) == canonical_name(name))
    others = [skill for skill in skills if skill is not own]

    def count(words: Sequence[str]) -> int:
        changed = replace(own, description=f"{own.description} {' '.join(words)}".strip())
        routed = route_triggers(name, triggers, [*others, changed], min_score=min_score)
        return sum(each.holds for each in routed)

    before = best = count(())
    chosen: list[str] = []
    routed = route_triggers(name, triggers, skills, min_score=min_score)
    candidates = _list_words([each for each in routed if each.trigger.should_trigger and not each.holds], own)
    # One word at a time, because trying all combinations would take exponential time.
    while candidates and len(chosen) < _MAX_WORDS:
        tried = {word: count([*chosen, word]) for word in candidates}
        # On a tie the first candidate, which is the most frequent word.
        word = max(tried, key=lambda each: (tried[each], -candidates.index(each)))
        if tried[word] <= best:
            break
        best = tried[word]
        chosen.append(word)
        candidates.remove(word)
    return Suggestion(words=tuple(chosen), before=before, after=best, total=len(triggers))


def _list_words(missed: Sequence[Routed], own: RoutableSkill) -> list[str]:
    """List informative words that the skill lacks, the most frequent first."""
    known = {stem(word) for word in split_words(f"{own.name} {own.description} {' '.join(own.tags)}")}
    counted: Counter[str] = Counter()
    for routed in missed:
        counted.update({word for word in split_words(routed.trigger.query) if _is_telling(word, known)})
    return [word for word, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))][:_MAX_TRIED]


def _is_telling(word: str, known: set[str]) -> bool:
    is_empty = word in FUNCTION_WORDS or word in FILLER_WORDS or word.isdigit()
    return len(word) >= _SHORTEST and not is_empty and stem(word) not in known
