"""Plans of the offline provider: the skill for each part of a request, and the arguments of its script. Pure.

The same request, skills and scores always give the same plan, so resumed and replayed runs compute the same one.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from metier.definitions.names import canonical_name, name_capability
from metier.definitions.placeholders import fill_arguments
from metier.definitions.skills.skill import Entrypoint
from metier.providers.offline.request import list_keywords, list_matched, read_request, split_at_weak, split_parts

MIN_SCORE = 55.0
"""Minimum score, out of 100, of a skill that is used. Running a wrong script is worse than running none."""
WEAK_MIN_SCORE = 60.0
"""Minimum score of both sides of a weak separator, for different skills, to become separate steps."""
MAX_STEPS = 50
MAX_PIECES = 24
"""Maximum number of pieces in one part; the last piece keeps the rest of the text."""
RANKED_CHARACTERS = 2_000
TASK_BYTES = 1_500
KEYWORDS_BYTES = 600
MATCHES_SHOWN = 6

type Rank = Callable[[str], Sequence[tuple[str, float]]]
"""Ranks skills for a text: names and scores from 0 to 100, best first."""


class OfflineSkill(Struct, frozen=True, kw_only=True):
    """The parts of a skill that can be used without a model."""

    name: str
    description: str = ""
    entrypoint: Entrypoint | None = None
    scripts: tuple[str, ...] = ()
    """Canonical names, with `.py`."""
    inputs: tuple[str, ...] | None = None
    """Inputs of its `impl.py`; None if it has none."""


class PlaceholderValues(Struct, frozen=True, kw_only=True):
    """Values for the placeholders of an entrypoint."""

    workspace: str
    artifacts: str
    previous: str
    """A JSON file with the results of earlier steps, which the run updates."""
    has_earlier_results: bool = False
    """True if this run is a step of a task that already has results of earlier steps."""


class Step(Struct, frozen=True, kw_only=True):
    """One part of the request."""

    number: int
    text: str
    skill: OfflineSkill | None = None
    reason: str = ""
    """Why this skill was chosen: its score and the matched words."""
    problem: str = ""
    """Why the part can't be done; empty if it can."""


class Plan(Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...]
    omitted: int = 0
    """Number of parts beyond `MAX_STEPS`."""
    is_truncated: bool = False
    """True if the request is longer than the part that is read."""


class Planner(Struct, frozen=True, kw_only=True):
    """Everything a plan depends on, apart from the request."""

    skills: tuple[OfflineSkill, ...]
    rank: Rank
    placeholders: PlaceholderValues
    min_score: float = MIN_SCORE
    only: str = ""
    """The skill for the whole request, if the user named one."""

    def plan(self, text: str) -> Plan:
        request = read_request(text)
        if skill := self.find(self.only) if self.only else None:
            choice = _Choice(skill, reason="named by the step")
            return Plan(steps=(self._build_step(1, request.text, choice),), is_truncated=request.is_truncated)
        parts = [piece for part in split_parts(request) for piece in self._split_by_skill(part)]
        routed = [(part, choice) for part in parts for choice in self._choose(part)]
        steps = [
            self._build_step(number, part, choice) for number, (part, choice) in enumerate(routed[:MAX_STEPS], start=1)
        ]
        omitted = max(0, len(routed) - MAX_STEPS)
        return Plan(steps=tuple(steps), omitted=omitted, is_truncated=request.is_truncated)

    def find(self, name: str) -> OfflineSkill | None:
        wanted = canonical_name(name)
        return next((skill for skill in self.skills if canonical_name(skill.name) == wanted), None)

    def score(self, skill: OfflineSkill, text: str) -> float:
        return next((score for name, score in self._ranked(text) if name == skill.name), 0.0)

    def _ranked(self, text: str) -> Sequence[tuple[str, float]]:
        return self.rank(text[:RANKED_CHARACTERS])

    def _split_by_skill(self, part: str) -> list[str]:
        """Split at the weak separators whose two sides clearly belong to different skills."""
        spans = split_at_weak(part)[:MAX_PIECES]
        if len(spans) == 1:
            return [part]
        pieces: list[str] = []
        start, skill = 0, self._get_clear_skill(part[slice(*spans[0])])
        for begin, end in spans[1:]:
            following = self._get_clear_skill(part[begin:end])
            if skill and following and following != skill:
                pieces.append(part[start:begin])
                start = begin
            skill = following or skill
        return [_trim_end(piece) for piece in [*pieces, part[start:]]]

    def _get_clear_skill(self, text: str) -> str:
        """Return the skill that clearly matches the text, or an empty string."""
        named = list_named(text, self.skills)
        if named:
            return named[0].name
        best = next(iter(self._ranked(text)), ("", 0.0))
        return best[0] if best[1] >= max(WEAK_MIN_SCORE, self.min_score) else ""

    def _choose(self, part: str) -> list["_Choice"]:
        """Choose the skills that the part names or, if there are none, the best match."""
        named = list_named(part, self.skills)
        if named:
            return [_Choice(skill, reason="named in the request") for skill in named]
        name, score = next(iter(self._ranked(part)), ("", 0.0))
        skill = self.find(name) if name else None
        if skill is None or score < self.min_score:
            best = f"; the closest is {skill.name!r} with {score:.0f} of 100" if skill and score >= 1 else ""
            return [_Choice(None, problem=f"no skill matches{best}")]
        matched = list_matched(part, f"{skill.name} {skill.description}")[:MATCHES_SHOWN]
        words = f"; matched: {', '.join(matched)}" if matched else ""
        return [_Choice(skill, reason=f"score {score:.0f} of 100{words}")]

    def _build_step(self, number: int, part: str, choice: "_Choice") -> Step:
        problem = choice.problem or (_get_problem(choice.skill) if choice.skill else "")
        return Step(number=number, text=part, skill=choice.skill, reason=choice.reason, problem=problem)


class ScriptCall(Struct, frozen=True, kw_only=True):
    """Arguments of `script_run`, or, without a script, of the tool of a callable skill."""

    skill: str
    script: str = ""
    args: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    """Inputs of a callable skill, sorted by name."""

    @property
    def tool(self) -> str:
        return "script_run" if self.script else name_capability(self.skill)


class _Choice(Struct, frozen=True):
    skill: OfflineSkill | None
    reason: str = ""
    problem: str = ""


def build_script_call(
    skill: OfflineSkill, text: str, placeholders: PlaceholderValues, *, has_previous: bool
) -> ScriptCall:
    """Build the call of a callable skill with its known inputs, or of an entrypoint with its placeholders filled."""
    keywords = ",".join(list_keywords(text, without=frozenset({skill.name.casefold()})))
    values = {
        "workspace": placeholders.workspace,
        "artifacts": placeholders.artifacts,
        "previous": placeholders.previous if has_previous else "",
        "task": _argument(text, TASK_BYTES),
        "keywords": _argument(keywords, KEYWORDS_BYTES),
    }
    if skill.inputs is not None:
        known = tuple((name, values[name]) for name in sorted(skill.inputs) if values.get(name))
        return ScriptCall(skill=canonical_name(skill.name), inputs=known)
    assert skill.entrypoint is not None, "a step without an entrypoint has a problem and is never called"
    args = fill_arguments(skill.entrypoint.args, values)
    return ScriptCall(skill=skill.name, script=skill.entrypoint.script.removesuffix(".py"), args=args)


def list_named(text: str, skills: Sequence[OfflineSkill]) -> list[OfflineSkill]:
    """List the skills that the text names, in the order of the text."""
    by_name = {canonical_name(skill.name): skill for skill in skills}
    found = {canonical_name(name): None for name in _list_names(text)}
    return [by_name[name] for name in found if name in by_name]


_NAMED = re.compile(
    r"(?<![\w/$.~-])[/$]([a-z0-9][\w-]*)(?![\w/.-])"  # /name, $name
    r"|`([\w-]+)`"
    r"|(?<![\w/.$~-])([a-z0-9]+(?:[-_][a-z0-9]+)+)(?![\w/-]|\.\w)"  # a name of several words, written as one
    r"|\bskill\s+['\"“]?([a-z0-9][\w-]*)"
    r"|(?<![\w/.$~-])([a-z0-9][\w-]*)(?=['\"”]?\s+skill\b)",
    re.IGNORECASE,
)


def _list_names(text: str) -> Iterator[str]:
    for match in _NAMED.finditer(text):
        yield next(group for group in match.groups() if group)
    yield text.strip(" .!?\n")


def _get_problem(skill: OfflineSkill) -> str:
    if skill.inputs is not None:
        return ""
    if skill.entrypoint is None:
        return f"skill {skill.name!r} has no entrypoint and no impl.py, so only a model can use it"
    script = skill.entrypoint.script.lower().removesuffix(".py") + ".py"
    if script not in skill.scripts:
        return f"the entrypoint of skill {skill.name!r} names script {skill.entrypoint.script!r}, which doesn't exist"
    return ""


def _argument(text: str, max_bytes: int) -> str:
    # One short line without leading dashes, so that no script mistakes it for an option.
    line = " ".join(text.split()).lstrip("-–— ")
    return line.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def _trim_end(piece: str) -> str:
    return re.sub(r"(?:[\s,&]+(?:and|und|et|y)?)+$", "", piece, count=1, flags=re.IGNORECASE) or piece
