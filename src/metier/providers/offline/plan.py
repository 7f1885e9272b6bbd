"""Which skill does which part of a request, and with which arguments its script is called. Pure.

The same request, skills and scores always give the same plan: a run that is resumed or replayed plans again and finds
itself where it was.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from metier.definitions.names import canonical_name, name_capability
from metier.definitions.placeholders import fill_arguments
from metier.definitions.skills.skill import Entrypoint
from metier.providers.offline.request import read_request, split_parts, split_weakly
from metier.providers.offline.words import list_keywords, list_matched

MIN_SCORE = 55.0
"""On 0-100: below it a skill counts as no answer. Running the wrong script is worse than saying that none fits."""
WEAK_MIN_SCORE = 60.0
"""What both sides of a weak joint must reach, by different skills, to be two pieces of work."""
MAX_STEPS = 50
MAX_PIECES = 24
"""Pieces between weak joints that are looked at in one part; the rest of it stays with the last one."""
RANKED_CHARACTERS = 2_000
TASK_BYTES = 1_500
KEYWORDS_BYTES = 600
MATCHES_SHOWN = 6

type Rank = Callable[[str], Sequence[tuple[str, float]]]
"""Skills for a text with their scores on 0-100, best first."""


class OfflineSkill(Struct, frozen=True, kw_only=True):
    """A skill as far as it can be used without a model."""

    name: str
    description: str = ""
    entrypoint: Entrypoint | None = None
    scripts: tuple[str, ...] = ()
    """Canonical names, with `.py`."""
    inputs: tuple[str, ...] | None = None
    """What its `impl.py` takes; nothing where it has none."""


class Places(Struct, frozen=True, kw_only=True):
    """What the placeholders of an entrypoint stand for."""

    workspace: str
    artifacts: str
    previous: str
    """A JSON file with the results of earlier steps, which the run keeps up to date."""
    has_given: bool = False
    """There are earlier steps that are not of this run, but of the task that it is a step of."""


class Step(Struct, frozen=True, kw_only=True):
    """One part of the request."""

    number: int
    text: str
    skill: OfflineSkill | None = None
    reason: str = ""
    """Why this skill: score and words."""
    problem: str = ""
    """Why the part cannot be done; empty where it can."""


class Plan(Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...]
    left_out: int = 0
    """Parts beyond the most that are planned."""
    is_cut: bool = False
    """The request is longer than what is read."""


class Planner(Struct, frozen=True, kw_only=True):
    """Everything a plan depends on besides the request."""

    skills: tuple[OfflineSkill, ...]
    rank: Rank
    places: Places
    min_score: float = MIN_SCORE
    only: str = ""
    """The one skill that the whole request is for, where the user named it."""

    def plan(self, text: str) -> Plan:
        """The steps for a request, in order."""
        request = read_request(text)
        if skill := self.find(self.only) if self.only else None:
            choice = _Choice(skill, reason="named by the step")
            return Plan(steps=(self._build_step(1, request.text, choice),), is_cut=request.is_cut)
        parts = [piece for part in split_parts(request) for piece in self._split_by_skill(part)]
        routed = [(part, choice) for part in parts for choice in self._choose(part)]
        steps = [
            self._build_step(number, part, choice) for number, (part, choice) in enumerate(routed[:MAX_STEPS], start=1)
        ]
        return Plan(steps=tuple(steps), left_out=max(0, len(routed) - MAX_STEPS), is_cut=request.is_cut)

    def find(self, name: str) -> OfflineSkill | None:
        wanted = canonical_name(name)
        return next((skill for skill in self.skills if canonical_name(skill.name) == wanted), None)

    def score(self, skill: OfflineSkill, text: str) -> float:
        return next((score for name, score in self._ranked(text) if name == skill.name), 0.0)

    def _ranked(self, text: str) -> Sequence[tuple[str, float]]:
        return self.rank(text[:RANKED_CHARACTERS])

    def _split_by_skill(self, part: str) -> list[str]:
        """Cut at the weak joints whose two sides clearly belong to different skills."""
        spans = split_weakly(part)[:MAX_PIECES]
        if len(spans) == 1:
            return [part]
        pieces: list[str] = []
        start, skill = 0, self._get_clear(part[slice(*spans[0])])
        for begin, end in spans[1:]:
            following = self._get_clear(part[begin:end])
            if skill and following and following != skill:
                pieces.append(part[start:begin])
                start = begin
            skill = following or skill
        return [_trim_end(piece) for piece in [*pieces, part[start:]]]

    def _get_clear(self, text: str) -> str:
        named = find_named(text, self.skills)
        if named:
            return named[0].name
        best = next(iter(self._ranked(text)), ("", 0.0))
        return best[0] if best[1] >= max(WEAK_MIN_SCORE, self.min_score) else ""

    def _choose(self, part: str) -> list["_Choice"]:
        """The skills that the part names, else the best one."""
        named = find_named(part, self.skills)
        if named:
            return [_Choice(skill, reason="named in the request") for skill in named]
        name, score = next(iter(self._ranked(part)), ("", 0.0))
        skill = self.find(name) if name else None
        if skill is None or score < self.min_score:
            best = f"; the nearest is {skill.name!r} with {score:.0f} of 100" if skill and score >= 1 else ""
            return [_Choice(None, problem=f"no skill matches{best}")]
        matched = list_matched(part, f"{skill.name} {skill.description}")[:MATCHES_SHOWN]
        words = f"; matched: {', '.join(matched)}" if matched else ""
        return [_Choice(skill, reason=f"score {score:.0f} of 100{words}")]

    def _build_step(self, number: int, part: str, choice: "_Choice") -> Step:
        problem = choice.problem or (_get_problem(choice.skill) if choice.skill else "")
        return Step(number=number, text=part, skill=choice.skill, reason=choice.reason, problem=problem)


class ScriptCall(Struct, frozen=True, kw_only=True):
    """What `script_run` is called with; or, without a script, the tool of the skill itself."""

    skill: str
    script: str = ""
    args: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    """Of a skill that is called: by name, in order of names."""

    @property
    def tool(self) -> str:
        return "script_run" if self.script else name_capability(self.skill)


class _Choice(Struct, frozen=True):
    skill: OfflineSkill | None
    reason: str = ""
    problem: str = ""


def build_script_call(skill: OfflineSkill, text: str, places: Places, *, has_previous: bool) -> ScriptCall:
    """The skill's code with the inputs that are known, else its entrypoint with its placeholders filled."""
    keywords = ",".join(list_keywords(text, without=frozenset({skill.name.casefold()})))
    values = {
        "workspace": places.workspace,
        "artifacts": places.artifacts,
        "previous": places.previous if has_previous else "",
        "task": _argument(text, TASK_BYTES),
        "keywords": _argument(keywords, KEYWORDS_BYTES),
    }
    if skill.inputs is not None:
        known = tuple((name, values[name]) for name in sorted(skill.inputs) if values.get(name))
        return ScriptCall(skill=canonical_name(skill.name), inputs=known)
    assert skill.entrypoint is not None, "steps without an entrypoint have a problem and are not called"
    args = fill_arguments(skill.entrypoint.args, values)
    return ScriptCall(skill=skill.name, script=skill.entrypoint.script.removesuffix(".py"), args=args)


def find_named(text: str, skills: Sequence[OfflineSkill]) -> list[OfflineSkill]:
    """Skills that the text calls by name, in the order in which it does."""
    by_name = {canonical_name(skill.name): skill for skill in skills}
    found = {canonical_name(name): None for name in _names(text)}
    return [by_name[name] for name in found if name in by_name]


_CALLED = re.compile(
    r"(?<![\w/$.~-])[/$]([a-z0-9][\w-]*)(?![\w/.-])"  # /name, $name
    r"|`([\w-]+)`"
    r"|(?<![\w/.$~-])([a-z0-9]+(?:[-_][a-z0-9]+)+)(?![\w/-]|\.\w)"  # a name of several words, written as one
    r"|\bskill\s+['\"“]?([a-z0-9][\w-]*)"
    r"|(?<![\w/.$~-])([a-z0-9][\w-]*)(?=['\"”]?\s+skill\b)",
    re.IGNORECASE,
)


def _names(text: str) -> Iterator[str]:
    for match in _CALLED.finditer(text):
        yield next(group for group in match.groups() if group)
    yield text.strip(" .!?\n")


def _get_problem(skill: OfflineSkill) -> str:
    if skill.inputs is not None:
        return ""
    if skill.entrypoint is None:
        return f"skill {skill.name!r} has no entrypoint and no impl.py, so only a model can use it"
    script = skill.entrypoint.script.lower().removesuffix(".py") + ".py"
    if script not in skill.scripts:
        return (
            f"the entrypoint of skill {skill.name!r} names the script {skill.entrypoint.script!r}, which is not there"
        )
    return ""


def _argument(text: str, most_bytes: int) -> str:
    """A value that every command line takes: one line, bounded, not to be mistaken for an option."""
    line = " ".join(text.split()).lstrip("-–— ")
    return line.encode("utf-8", "replace")[:most_bytes].decode("utf-8", "ignore")


def _trim_end(piece: str) -> str:
    return re.sub(r"(?:[\s,&]+(?:and|und|et|y)?)+$", "", piece, count=1, flags=re.IGNORECASE) or piece
