"""How calls of past runs would be judged under the rules of today. Reads journals; changes nothing."""

from collections.abc import Callable, Sequence

from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.approval.rules import Decision
from metier.dataclass import dataclass
from metier.decisions import ActionStep
from metier.definitions.profile import Profile
from metier.engine import entries as e
from metier.engine.calls import build_memory_key
from metier.engine.decide import Policy
from metier.engine.state import RunState, apply


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCall:
    """A call and what was decided about it when it was made."""

    step_id: str
    action: ActionStep
    skill: str
    was: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    run_id: str
    step_id: str
    tool: str
    arguments: dict[str, JsonValue]
    was: Decision
    now: Decision
    reason: str
    rule: str


@dataclass(frozen=True, slots=True)
class Backtest:
    calls: int
    changes: tuple[Change, ...]


def find_calls(run_id: str, entries: Sequence[e.Entry]) -> list[PastCall]:
    """Every call that was judged, in order. What was remembered from an earlier answer counts as asked about."""
    state = RunState(run_id)
    found: dict[str, PastCall] = {}
    for entry in entries:
        step_id = getattr(entry, "step_id", "")
        was = _find_decision(entry, state)
        if was is not None and step_id not in found:
            action = state.step(step_id).action
            found[step_id] = PastCall(step_id=step_id, action=action, skill=state.skill, was=was)
        apply(state, entry)
    return list(found.values())


def backtest(run_id: str, entries: Sequence[e.Entry], build: Callable[[str, Profile], Policy]) -> Backtest:
    """Judge the calls of a run again, under the agent and profile it had. `build` gives the rules of today."""
    started = entries[0] if entries and isinstance(entries[0], e.RunStarted) else None
    if started is None:
        return Backtest(0, ())
    policy = build(started.agent, read_profile(started.profile))
    calls = find_calls(run_id, entries)
    changes: list[Change] = []
    for call in calls:
        verdict = policy.judge(call.action, skill=call.skill)
        if verdict.decision != call.was:
            tool, arguments = name_call(call.action)
            changes.append(
                Change(
                    run_id=run_id,
                    step_id=call.step_id,
                    tool=tool,
                    arguments=arguments,
                    was=call.was,
                    now=verdict.decision,
                    reason=verdict.reason,
                    rule=verdict.rule,
                )
            )
    return Backtest(len(calls), tuple(changes))


def _find_decision(entry: e.Entry, state: RunState) -> Decision | None:
    match entry:
        case e.ApprovalAsked():
            return "ask"
        case e.StepStarted():
            return "ask" if build_memory_key(entry.action) in state.remembered else "allow"
        case e.StepFinished(status="denied"):
            return "deny"
        case _:
            return None


def read_profile(word: str) -> Profile:
    match word:
        case "permissive" | "guarded" | "strict":
            return word
        case _:
            return "guarded"
