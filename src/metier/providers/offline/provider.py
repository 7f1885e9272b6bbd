"""The provider without a model: it plans by routing scores and runs the entrypoints of skills. No network, no clock.

Every reply is a function of the request alone. `plan` makes the plan, `progress` reads the transcript, `result` writes
the final text; this module chooses the next call.
"""

from collections.abc import Sequence

from msgspec import Struct, json
from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import ActionStep, ModelDecision
from metier.definitions.skills.scripts import discover_scripts, find_impl
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.text.yaml_text import Mapping
from metier.messages import ModelReply, Part, Shortfall, TextPart, ToolCallPart
from metier.providers.base import Delta, ModelRequest, Observer, OneTool
from metier.providers.offline.plan import (
    MIN_SCORE,
    OfflineSkill,
    Places,
    Plan,
    Planner,
    Rank,
    ScriptCall,
    Step,
    build_script_call,
)
from metier.providers.offline.progress import Progress, read_progress, read_task
from metier.providers.offline.result import (
    NO_SKILL,
    Ending,
    find_shortfall,
    is_settled,
    render_hint,
    render_result,
    render_without_skills,
)
from metier.providers.options import OFFLINE
from metier.providers.registry import BUILT_IN
from metier.skills.package import SkillPackage

MAX_TURNS = 8


class OfflineProvider:
    """Answers without a model, using skills with a routing score of at least `min_score`, or the skill `only`.

    In turn `max_turns`, the run's limit, it finishes with the results so far instead of being stopped.
    """

    def __init__(
        self,
        *,
        skills: Sequence[OfflineSkill],
        rank: Rank,
        places: Places,
        min_score: float = MIN_SCORE,
        max_turns: int = MAX_TURNS,
        only: str = "",
    ) -> None:
        self._planner = Planner(skills=tuple(skills), rank=rank, places=places, min_score=min_score, only=only)
        self._max_turns = max_turns

    @property
    def name(self) -> str:
        return OFFLINE

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        reply = plan(request, self._planner, max_turns=self._max_turns)
        if observe is not None:
            for part in reply.parts:
                if isinstance(part, TextPart):
                    observe(Delta("text", part.text))
        return reply

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002  required by `Provider`
        return None

    async def close(self) -> None:
        pass


def build_offline(
    packages: Sequence[SkillPackage],
    rank: Rank,
    *,
    places: Places,
    min_score: float = MIN_SCORE,
    max_turns: int = MAX_TURNS,
    only: str = "",
) -> OfflineProvider:
    """Build the provider for the active skills of a run. Lists their scripts; runs nothing."""
    skills = [
        OfflineSkill(
            name=package.definition.name,
            description=package.definition.description,
            entrypoint=package.definition.entrypoint,
            scripts=tuple(script.name for script in discover_scripts(package.definition)),
            inputs=_find_inputs(package.definition),
        )
        for package in packages
    ]
    return OfflineProvider(skills=skills, rank=rank, places=places, min_score=min_score, max_turns=max_turns, only=only)


def _find_inputs(skill: SkillDefinition) -> tuple[str, ...] | None:
    """Find the names of its inputs in its contract; None if it is not a callable skill."""
    if find_impl(skill) is None:
        return None
    inner = skill.contract.find("contract")
    mappings = [skill.contract, inner.value if inner and isinstance(inner.value, Mapping) else Mapping((), 1)]
    found: dict[str, None] = {}
    for mapping in mappings:
        for key in ("input_schema", "input_request_jsonschema"):
            schema = mapping.find(key)
            properties = schema.value.find("properties") if schema and isinstance(schema.value, Mapping) else None
            if properties is not None and isinstance(properties.value, Mapping):
                found |= dict.fromkeys(entry.key for entry in properties.value.entries)
    return tuple(found)


def plan(request: ModelRequest, planner: Planner, *, max_turns: int = MAX_TURNS) -> ModelReply:
    """Reply to a request. Pure, so replaying or resuming a run gives the same calls again."""
    if request.response_schema is not None:
        return _reject_json_mode()
    turn = _Turn(
        planner=planner,
        plan=planner.plan(read_task(request.messages)),
        progress=read_progress(request.messages),
        offered=_list_offered(request),
        max_turns=max_turns,
    )
    return turn.reply()


class _Turn(Struct, frozen=True, kw_only=True):
    planner: Planner
    plan: Plan
    progress: Progress
    offered: frozenset[str]
    max_turns: int

    def reply(self) -> ModelReply:
        calls = self._choose() if self._has_room_for(1) else []
        return _build_reply(calls) if calls else self._finish()

    def _choose(self) -> list[ToolCallPart]:
        """Choose the next script and, in the same turn, the activation of the skill after it."""
        pending = [step for step in self.plan.steps if not is_settled(step, self.progress) and self._is_offered(step)]
        failed = self._find_step_for_fallback()
        if failed is not None:
            return [self._run(failed), *self._use_next(pending, after=failed)]
        covered = self._get_covered()
        pending = [step for step in pending if step.number not in covered]
        if not pending:
            return []
        first = pending[0]
        if self._needs_activation(first, self.progress.active_skill):
            return [self._use(first)] if self._has_room_for(2) else []
        return [self._run(first), *self._use_next(pending[1:], after=first)]

    def _is_offered(self, step: Step) -> bool:
        return self._script_call(step).tool in self.offered

    def _use_next(self, pending: list[Step], *, after: Step) -> list[ToolCallPart]:
        active = after.skill.name if after.skill else ""
        if not pending or not self._needs_activation(pending[0], active) or not self._has_room_for(2):
            return []
        return [self._use(pending[0])]

    def _needs_activation(self, step: Step, active: str) -> bool:
        return "use_skill" in self.offered and step.skill is not None and step.skill.name != active

    def _has_room_for(self, turns: int) -> bool:
        """Return True if so many turns remain after this one; the last turn reports the result."""
        return self.progress.turn + turns <= self.max_turns

    def _find_step_for_fallback(self) -> Step | None:
        """Find the step that just failed, if the skill that became active after it can do it too."""
        skill = self.planner.find(self.progress.fallback) if self.progress.fallback else None
        can_work = skill is not None and (skill.entrypoint is not None or skill.inputs is not None)
        if skill is None or not can_work or not self.progress.attempts:
            return None
        number = self.progress.attempts[-1].step
        step = next((step for step in self.plan.steps if step.number == number), None)
        is_wanted_later = any(later.skill == skill for later in self.plan.steps if later.number > number)
        if step is None or is_wanted_later or self.planner.score(skill, step.text) < self.planner.min_score:
            return None
        instead = Step(number=number, text=step.text, skill=skill)
        return instead if self._is_offered(instead) else None

    def _get_covered(self) -> frozenset[int]:
        """Return the numbers of open steps whose exact call already succeeded. It isn't repeated."""
        made = {attempt.call for attempt in self.progress.attempts if attempt.ok}
        open_steps = [step for step in self.plan.steps if not is_settled(step, self.progress)]
        return frozenset(step.number for step in open_steps if self._script_call(step) in made)

    def _script_call(self, step: Step) -> ScriptCall:
        assert step.skill is not None, "a step without a skill has a problem and is never called"
        has_previous = self.progress.has_results or self.planner.places.has_given
        return build_script_call(step.skill, step.text, self.planner.places, has_previous=has_previous)

    def _use(self, step: Step) -> ToolCallPart:
        assert step.skill is not None, "a step without a skill has a problem and is never called"
        reason = f"{step.text[:200]}: {step.reason}"
        return self._call(step, "use_skill", {"skill": step.skill.name, "reason": reason})

    def _run(self, step: Step) -> ToolCallPart:
        call = self._script_call(step)
        if not call.script:
            return self._call(step, call.tool, dict(call.inputs))
        arguments: dict[str, JsonValue] = {
            "skill_name": call.skill,
            "script_name": call.script,
            "args": list(call.args),
            "json": True,
        }
        return self._call(step, "script_run", arguments)

    def _call(self, step: Step, name: str, arguments: dict[str, JsonValue]) -> ToolCallPart:
        return ToolCallPart(id=f"{OFFLINE}-{self.progress.turn}-{step.number}", name=name, arguments=arguments)

    def _finish(self) -> ModelReply:
        hint = render_hint(BUILT_IN)
        result = render_without_skills(hint)
        short: Shortfall | None = Shortfall(reason=NO_SKILL, message="No skill is active, and no model is configured")
        if self.planner.skills:
            ending = self._build_ending(hint)
            result = render_result(self.plan, self.progress, ending)
            short = find_shortfall(self.plan, self.progress, ending)
        call_id = f"{OFFLINE}-{self.progress.turn}-0"
        reply = _build_text_reply(result)
        if "finish" in self.offered:
            reply = _build_reply([ToolCallPart(id=call_id, name="finish", arguments={"result": result})])
        return replace(reply, shortfall=short)

    def _build_ending(self, hint: str) -> Ending:
        wanted = {self._script_call(step).tool for step in self.plan.steps if step.skill and not step.problem}
        missing = sorted(wanted - self.offered)
        covered = self._get_covered()
        if missing:
            blocked = f"the tool {missing[0]!r} is not offered in this run"
            return Ending(blocked=blocked, covered=covered, hint=hint, reason="tool_not_offered")
        blocked = f"the run has used its {self.max_turns} turns (runtime.max_turns)"
        return Ending(blocked=blocked, covered=covered, hint=hint)


def _list_offered(request: ModelRequest) -> frozenset[str]:
    names = frozenset(tool.name for tool in request.tools)
    match request.tool_choice:
        case "none":
            return frozenset()
        case OneTool(name=name):
            return names & {name}
        case "auto" | "required":
            return names


def _build_reply(calls: Sequence[ToolCallPart]) -> ModelReply:
    parts: tuple[Part, ...] = tuple(calls)
    return ModelReply(parts=parts, stop_reason="tool_calls", provider=OFFLINE, model=OFFLINE)


def _build_text_reply(text: str) -> ModelReply:
    return ModelReply(parts=(TextPart(text=text),), stop_reason="end", provider=OFFLINE, model=OFFLINE)


def _reject_json_mode() -> ModelReply:
    """Report that nothing can be planned without tools, in the requested JSON format."""
    result = (
        "Nothing was done: the offline provider calls tools, and model.structured_output_mode 'json' offers none. "
        "Set it to 'native'."
    )
    decision = ModelDecision(planned_actions=(ActionStep(type="finish", params={"result": result}),))
    short = Shortfall(reason="tool_not_offered", message="The offline provider needs tool calls")
    return replace(_build_text_reply(json.encode(decision).decode()), shortfall=short)
