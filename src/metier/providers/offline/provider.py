"""The provider without a model: it plans by routing scores and runs the entrypoints of skills. No network, no clock.

Every reply is a function of the request alone. `plan` builds the plan and `progress` reads the transcript; this module
chooses the next call and writes the final text: the result of each step, or the reason that it wasn't done.
"""

import json
import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import ActionStep, ModelDecision, describe_failure, find_summary, read_failure, read_success
from metier.definitions.skills.scripts import discover_scripts, find_impl
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.text.yaml_text import Mapping as YamlMapping
from metier.messages import ModelReply, Part, Shortfall, TextPart, ToolCallPart
from metier.providers.base import Delta, ModelRequest, Observer, OneTool
from metier.providers.offline.plan import (
    MIN_SCORE,
    OfflineSkill,
    PlaceholderValues,
    Plan,
    Planner,
    Rank,
    ScriptCall,
    Step,
    build_script_call,
)
from metier.providers.offline.progress import Attempt, Progress, read_progress, read_task
from metier.providers.offline.request import READ_CHARACTERS
from metier.providers.options import OFFLINE
from metier.providers.registry import BUILT_IN
from metier.skills.package import SkillPackage
from metier.telemetry.excerpt import one_line

MAX_TURNS = 8


class OfflineProvider:
    """Answers without a model, using skills with a routing score of at least `min_score`, or only the skill `only`.

    In turn `max_turns`, the run's limit, it finishes with the results so far instead of being stopped.
    """

    def __init__(
        self,
        *,
        skills: Sequence[OfflineSkill],
        rank: Rank,
        placeholders: PlaceholderValues,
        min_score: float = MIN_SCORE,
        max_turns: int = MAX_TURNS,
        only: str = "",
    ) -> None:
        self._planner = Planner(
            skills=tuple(skills), rank=rank, placeholders=placeholders, min_score=min_score, only=only
        )
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
    placeholders: PlaceholderValues,
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
    return OfflineProvider(
        skills=skills, rank=rank, placeholders=placeholders, min_score=min_score, max_turns=max_turns, only=only
    )


def _find_inputs(skill: SkillDefinition) -> tuple[str, ...] | None:
    """Find the names of a callable skill's inputs in its contract. Return None for other skills."""
    if find_impl(skill) is None:
        return None
    inner = skill.contract.find("contract")
    mappings = [
        skill.contract,
        inner.value if inner and isinstance(inner.value, YamlMapping) else YamlMapping((), 1),
    ]
    found: dict[str, None] = {}
    for mapping in mappings:
        for key in ("input_schema", "input_request_jsonschema"):
            schema = mapping.find(key)
            properties = schema.value.find("properties") if schema and isinstance(schema.value, YamlMapping) else None
            if properties is not None and isinstance(properties.value, YamlMapping):
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
        """Return True if this many turns remain after this one. The last turn reports the result."""
        return self.progress.turn + turns <= self.max_turns

    def _find_step_for_fallback(self) -> Step | None:
        """Find the step that just failed, if the fallback skill can do it too."""
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
        """Return the numbers of open steps whose exact call already succeeded and isn't repeated."""
        made = {attempt.call for attempt in self.progress.attempts if attempt.ok}
        open_steps = [step for step in self.plan.steps if not is_settled(step, self.progress)]
        return frozenset(step.number for step in open_steps if self._script_call(step) in made)

    def _script_call(self, step: Step) -> ScriptCall:
        assert step.skill is not None, "a step without a skill has a problem and is never called"
        has_previous = self.progress.has_results or self.planner.placeholders.has_earlier_results
        return build_script_call(step.skill, step.text, self.planner.placeholders, has_previous=has_previous)

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
        hint = render_hint()
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

    def _build_ending(self, hint: str) -> "Ending":
        needed = {self._script_call(step).tool for step in self.plan.steps if step.skill and not step.problem}
        missing = sorted(needed - self.offered)
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
    """Report, in the requested JSON format, that nothing can be planned without tools."""
    result = (
        "Nothing was done: the offline provider calls tools, and model.structured_output_mode 'json' offers none. "
        "Set it to 'native'."
    )
    decision = ModelDecision(planned_actions=(ActionStep(type="finish", params={"result": result}),))
    short = Shortfall(reason="tool_not_offered", message="The offline provider needs tool calls")
    return replace(_build_text_reply(msgspec.json.encode(decision).decode()), shortfall=short)


SUMMARY_CHARACTERS = 2_000
REASON_CHARACTERS = 300
QUOTED_CHARACTERS = 80
FILES_SHOWN = 20
NO_SKILL = "no_skill"
_STATUSES: dict[str, Literal["failed", "timeout", "blocked", "escalated"]] = {
    "timeout": "timeout",
    "blocked": "blocked",
    "escalated": "escalated",
}

_SUMMARY_AT_START = re.compile(r'\{"success":\s*true,\s*"result":\s*\{"summary":\s*(?=")')


class Produced(Struct, frozen=True):
    """A script's own report."""

    summary: str
    files: tuple[str, ...] = ()


class Ending(Struct, frozen=True, kw_only=True):
    """The parts of the result that don't come from the steps."""

    blocked: str
    """Why steps were not tried."""
    covered: frozenset[int] = frozenset()
    """Steps whose exact call was already made for another step."""
    hint: str = ""
    reason: str = "max_turns_exceeded"
    """The code of `blocked`."""


def render_result(plan: Plan, progress: Progress, ending: Ending) -> str:
    alone = len(plan.steps) == 1
    done = [line for step in plan.steps if (line := _render_done(step, progress, ending, alone=alone))]
    undone = [line for step in plan.steps if (line := _render_undone(step, progress, ending))]
    if plan.omitted:
        undone.append(f"- {plan.omitted} more parts: a request can have at most {len(plan.steps)}")
    if plan.is_truncated:
        undone.append(f"- the text after the first {READ_CHARACTERS} characters of the request: it was not read")
    if not plan.steps:
        undone.append("- the request: it contains no task")
    lines = done or ["Nothing was done."]
    if undone:
        lines = [*lines, "", "Not done:", *undone]
    if any(step.problem for step in plan.steps):
        lines = [*lines, "", f"No model was used. {ending.hint}"]
    return "\n".join(lines)


def render_hint() -> str:
    """Tell the user how to configure a model."""
    choices = [f"{name} with {found.keys[0]}" for name, found in sorted(BUILT_IN.items()) if found.keys]
    return (
        "To use a model, set AGENT_MODEL_PROVIDER and the provider's key: "
        f"{', '.join(choices)}; for your own server, set AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL."
    )


def render_without_skills(hint: str) -> str:
    return (
        "Nothing was done: no model was used and no skill is active, and the offline provider can only use skills. "
        "Run `agent init` to create a workspace with skills, or `agent skills` to see how to activate others. "
        f"{hint}"
    )


def is_settled(step: Step, progress: Progress) -> bool:
    """Return True if nothing more will be tried for this step."""
    return bool(
        step.problem
        or step.number <= progress.forgotten
        or progress.list_attempts(step.number)
        or any(number == step.number for number, _ in progress.rejected)
    )


def read_produced(text: str) -> Produced:
    """Read the summary and the files from a script's JSON, or the first characters of other text."""
    success = read_success(text)
    if success is None:
        return Produced(one_line(_read_truncated_summary(text) or text, SUMMARY_CHARACTERS))
    result, summary = success.get("result"), find_summary(success)
    if summary is None:
        summary = json.dumps(result, ensure_ascii=False)
    files = result.get("artifacts") if isinstance(result, dict) else None
    named = [str(file) for file in files] if isinstance(files, list) else []
    return Produced(one_line(summary, SUMMARY_CHARACTERS), tuple(named[:FILES_SHOWN]))


def _render_done(step: Step, progress: Progress, ending: Ending, *, alone: bool) -> str:
    mark = "" if alone else f"{step.number}. "
    if step.number in ending.covered and step.skill:
        return f"{mark}{_quote(step)}: the same call of {step.skill.name} as above"
    attempts = progress.list_attempts(step.number)
    if step.number <= progress.forgotten and not step.problem and not attempts:
        return f"{mark}{_quote(step)}: tried in an earlier turn; see the run log for its result"
    good = next((attempt for attempt in attempts if attempt.ok), None)
    if good is None:
        return ""
    failed = "".join(f"{each.call.skill} failed ({_describe(each)}); " for each in attempts if not each.ok)
    return _render_attempt(good, f"{mark}{failed}{good.call.skill}")


def _render_attempt(attempt: Attempt, lead: str) -> str:
    produced = read_produced(attempt.text)
    lines = [f"{lead}: {produced.summary}"]
    lines += [f"   - {file}" for file in produced.files if file not in produced.summary]
    return "\n".join(lines)


def _render_undone(step: Step, progress: Progress, ending: Ending) -> str:
    if step.problem:
        return f"- {_quote(step)}: {step.problem}"
    attempts = progress.list_attempts(step.number)
    if step.number <= progress.forgotten or step.number in ending.covered or any(a.ok for a in attempts):
        return ""
    if attempts:
        tried = "; ".join(f"{attempt.call.skill} failed: {_describe(attempt)}" for attempt in attempts)
        return f"- {_quote(step)}: {tried}"
    reason = next((text for number, text in progress.rejected if number == step.number), "")
    return f"- {_quote(step)}: {one_line(reason, REASON_CHARACTERS) if reason else ending.blocked}"


def _describe(attempt: Attempt) -> str:
    return one_line(describe_failure(attempt.text), REASON_CHARACTERS).rstrip(".") or "it gave no reason"


def find_shortfall(plan: Plan, progress: Progress, ending: Ending) -> Shortfall | None:
    """Return the shortfall of the first part that was not done, or None if all were."""
    if not plan.steps:
        return Shortfall(reason=NO_SKILL, message="The request contains no task")
    undone = [step for step in plan.steps if _render_undone(step, progress, ending)]
    if undone:
        return _build_shortfall(undone[0], progress, ending)
    if plan.omitted or plan.is_truncated:
        return Shortfall(reason="request_too_long", message="Part of the request was not read or not done")
    return None


def _build_shortfall(step: Step, progress: Progress, ending: Ending) -> Shortfall:
    if step.problem:
        return Shortfall(reason=NO_SKILL, message=f"{_quote(step)} was not done: {step.problem}")
    attempts = progress.list_attempts(step.number)
    if not attempts:
        rejected = any(number == step.number for number, _ in progress.rejected)
        reason = "step_failed" if rejected else ending.reason
        status = "escalated" if reason == "max_turns_exceeded" else "failed"
        return Shortfall(
            status=status, reason=reason, message=_render_undone(step, progress, ending).removeprefix("- ")
        )
    last = attempts[-1]
    failure = read_failure(last.text) or {}
    word = str(failure.get("state") or failure.get("error") or "")
    status = _STATUSES.get(word, "failed")
    reason = "step_failed" if status == "failed" else f"skill_{status}"
    return Shortfall(status=status, reason=reason, message=f"Skill {last.call.skill!r} failed: {_describe(last)}")


def _quote(step: Step) -> str:
    return f'"{one_line(step.text, QUOTED_CHARACTERS)}"'


def _read_truncated_summary(text: str) -> str:
    # Truncated output lacks its middle, so it isn't valid JSON, but its summary is at the start.
    match = _SUMMARY_AT_START.match(text)
    if match is None:
        return ""
    try:
        value = cast("JsonValue", json.JSONDecoder().raw_decode(text, match.end())[0])  # JSON has no other values
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
