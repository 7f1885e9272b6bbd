"""Compact builders of journals for tests of the pure core."""

from msgspec import convert

from metier.approval.rules import ALLOW, Verdict
from metier.decisions import ActionStep, ModelDecision
from metier.engine.entries.entry import Entry
from metier.engine.entries.limits import Limits
from metier.engine.entries.model import DecisionMade, ModelCallStarted, ModelReplied, Rejection
from metier.engine.entries.run import RunStarted
from metier.engine.entries.skill import CatalogLoaded, ContextDisclosed, SkillsRanked
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.state.fold import fold
from metier.engine.state.run_state import RunState
from metier.events.skill import Candidate
from metier.messages import ModelReply, Part, TextPart, ToolCallPart, Usage
from metier.tools.effects import Effect

READS = frozenset({"look", "look-again"})


class TablePolicy:
    """A policy that asks about or denies tools by name; `look` is read-only."""

    def __init__(self, *, asks: frozenset[str] = frozenset(), denies: frozenset[str] = frozenset()) -> None:
        self.asks = asks
        self.denies = denies

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        tool = str(action.params.get("tool", ""))
        if tool in self.denies:
            return Verdict(decision="deny", reason=f"{tool} is denied")
        return Verdict(decision="ask", reason=f"{tool} is asked for") if tool in self.asks else ALLOW

    def effect(self, action: ActionStep) -> Effect:
        if action.type in ("call_skill", "ask_user", "finish"):
            return "read"
        return "read" if action.params.get("tool") in READS else "opaque"


def started(**limits: object) -> RunStarted:
    return RunStarted(
        task="do it",
        provider="p",
        model="m",
        context_id="r",
        trace_id="t",
        workspace="w",
        limits=convert(limits, Limits),
    )


def until_call(*skills: str, **limits: object) -> list[Entry]:
    """Return the entries of a run before its first model call."""
    candidates = tuple(Candidate(skill_name=skill, score=90) for skill in skills)
    return [
        started(**limits),
        CatalogLoaded(skills=skills),
        SkillsRanked(candidates=candidates, considered=len(skills)),
        ContextDisclosed(),
    ]


def asked(turn: int = 1, *, repair: bool = False) -> ModelCallStarted:
    return ModelCallStarted(turn=turn, request_hash="h", prefix_hash="p", estimated_tokens=10, repair=repair)


def replied(*calls: ActionStep, turn: int = 1, cost: float = 0.0) -> ModelReplied:
    parts: list[Part] = [ToolCallPart(id=call.call_id, name=str(call.params.get("tool", call.type))) for call in calls]
    reply = ModelReply(
        parts=tuple(parts) or (TextPart(text="hm"),),
        stop_reason="tool_calls" if calls else "end",
        usage=Usage(input_tokens=10, output_tokens=5),
        provider="p",
        model="m",
    )
    return ModelReplied(turn=turn, reply=reply, cost_usd=cost)


def decided(*actions: ActionStep, turn: int = 1, rejected: tuple[Rejection, ...] = ()) -> DecisionMade:
    decision = ModelDecision(planned_actions=actions)
    return DecisionMade(turn=turn, decision=decision, path="native", rejected=rejected)


def turn_of(*actions: ActionStep, turn: int = 1, cost: float = 0.0) -> list[Entry]:
    """Return the entries of a turn with a decoded reply."""
    return [asked(turn), replied(*actions, turn=turn, cost=cost), decided(*actions, turn=turn)]


def tool(name: str, call_id: str = "c1", **arguments: str) -> ActionStep:
    return ActionStep(type="call_tool", params={"tool": name, "arguments": dict(arguments)}, call_id=call_id)


def use_skill(name: str, call_id: str = "s1") -> ActionStep:
    return ActionStep(type="call_skill", params={"skill": name, "reason": f"for {name}"}, call_id=call_id)


def finish(result: str = "done", call_id: str = "f1") -> ActionStep:
    return ActionStep(type="finish", params={"result": result}, call_id=call_id)


def question(text: str = "Which?", call_id: str = "q1") -> ActionStep:
    return ActionStep(type="ask_user", params={"question": text}, call_id=call_id)


def intent(step_id: str, action: ActionStep, *, attempt: int = 1, effect: Effect = "opaque") -> StepStarted:
    return StepStarted(step_id=step_id, attempt=attempt, action=action, effect=effect, idempotency_key="k")


def ended(step_id: str, *, ok: bool = True, text: str = "fine") -> StepFinished:
    return StepFinished(step_id=step_id, status="succeeded" if ok else "failed", text=text, is_error=not ok)


def broke(step_id: str, *, retryable: bool = True) -> StepFinished:
    """Return the entries of a skill failure, so that the failure policy applies."""
    return StepFinished(
        step_id=step_id,
        status="failed",
        text="it broke\nbadly",
        is_error=True,
        error_type="execution_failed",
        retryable=retryable,
        counts_as_failure=True,
    )


def folded(*entries: Entry | list[Entry]) -> RunState:
    flat: list[Entry] = []
    for entry in entries:
        flat.extend(entry if isinstance(entry, list) else [entry])
    return fold("r", flat)
