"""The policy of a run that works for another one: what it may do itself, and no more than every run above it may."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metier.approval.judge import RulePolicy
from metier.approval.rules import Decision
from metier.approval.verdict import Verdict
from metier.decisions import ActionStep
from metier.tools.effects import Effect

STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


class Above(Struct, frozen=True, kw_only=True):
    """A run higher up, as it stood when it handed the work on."""

    run: str
    policy: RulePolicy
    skill: str = ""
    """The skill that was in charge of it."""


class ChainPolicy:
    """Deny beats ask beats allow, over all runs of the chain. What one of them allows is no permission for another."""

    def __init__(self, own: RulePolicy, above: Sequence[Above]) -> None:
        self._own = own
        self._above = tuple(above)

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        own = self._own.judge(action, skill=skill)
        return self._choose(own, (each.policy.judge(action, skill=each.skill) for each in self._above))

    def judge_tool(self, action: ActionStep, *, skill: str) -> Verdict:
        """As `RulePolicy.judge_tool`."""
        own = self._own.judge_tool(action, skill=skill)
        return self._choose(own, (each.policy.judge_tool(action, skill=each.skill) for each in self._above))

    def get_read_denial(self, path: str, *, skill: str) -> str:
        """As `RulePolicy.get_read_denial`, for every run of the chain."""
        own = self._own.get_read_denial(path, skill=skill)
        return own or next(filter(None, (o.policy.get_read_denial(path, skill=o.skill) for o in self._above)), "")

    def _choose(self, own: Verdict, above: Iterable[Verdict]) -> Verdict:
        strictest = own
        for each, verdict in zip(self._above, above, strict=True):
            if _rank(verdict) > _rank(strictest):
                reason = f"{verdict.reason} (it holds for {each.run}, which handed this work on)"
                strictest = replace(verdict, reason=reason)
        return strictest

    def effect(self, action: ActionStep) -> Effect:
        return self._own.effect(action)


def _rank(verdict: Verdict) -> tuple[int, bool]:
    """Of two that allow, the one that allows less; of two that ask, the one that asks about every child run."""
    return STRICTNESS[
        verdict.decision
    ], verdict.read_only if verdict.decision == "allow" else not verdict.is_child_question
