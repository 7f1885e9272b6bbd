"""Policies that narrow a run's policy: to what its parents allow, or to reading. Pure."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metier.approval.judge import DELEGATE, RUN_TASK, RulePolicy, name_call
from metier.approval.rules import ORDER, SHELL, Verdict
from metier.approval.shell import build_call, read_shell_call
from metier.decisions import ActionStep
from metier.tools.effects import Effect

# Journals contain this sentence and replays compare it, so its wording must not change.
_READS_ONLY = (
    "This run works beside others in the same workspace, so it may only read; say what should be changed instead"
)
_RULE = "reads only"
PAGES = frozenset({"WebFetch", "WebSearch"})
"""Tools that change nothing in the workspace. They aren't `read` because they send a query to a third party."""


class Parent(Struct, frozen=True, kw_only=True):
    """A parent run, as it was when it delegated the work."""

    run: str
    policy: RulePolicy
    skill: str = ""
    """The skill that was in charge."""


class ChainPolicy:
    """The strictest verdict of a run and its parents. One run's permission does not extend to another."""

    def __init__(self, own: RulePolicy, parents: Sequence[Parent]) -> None:
        self._own = own
        self._parents = tuple(parents)

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        own = self._own.judge(action, skill=skill)
        return self._choose(own, (each.policy.judge(action, skill=each.skill) for each in self._parents))

    def judge_tool(self, action: ActionStep, *, skill: str) -> Verdict:
        """As `RulePolicy.judge_tool`."""
        own = self._own.judge_tool(action, skill=skill)
        return self._choose(own, (each.policy.judge_tool(action, skill=each.skill) for each in self._parents))

    def get_read_denial(self, path: str, *, skill: str) -> str:
        """Ask `RulePolicy.get_read_denial` of every run of the chain."""
        own = self._own.get_read_denial(path, skill=skill)
        return own or next(filter(None, (o.policy.get_read_denial(path, skill=o.skill) for o in self._parents)), "")

    def _choose(self, own: Verdict, verdicts: Iterable[Verdict]) -> Verdict:
        strictest = own
        for each, verdict in zip(self._parents, verdicts, strict=True):
            # On a tie the run's own verdict stays, whose reason fits this run.
            if _rank(verdict) > _rank(strictest):
                reason = f"{verdict.reason} (it holds for {each.run}, which handed this work on)"
                strictest = replace(verdict, reason=reason)
        return strictest

    def effect(self, action: ActionStep) -> Effect:
        return self._own.effect(action)


def _rank(verdict: Verdict) -> tuple[int, bool]:
    """Of two that allow, prefer the one that allows less; of two that ask, the one that asks about every child run."""
    is_narrow = verdict.read_only if verdict.decision == "allow" else not verdict.is_child_question
    return ORDER[verdict.decision], is_narrow


class ReadingPolicy:
    """Denies everything but reading, and leaves the rest to the policy that it narrows."""

    def __init__(self, narrowed: RulePolicy | ChainPolicy) -> None:
        self._narrowed = narrowed

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        return self._refuse(action) or self._narrowed.judge(action, skill=skill)

    def judge_tool(self, action: ActionStep, *, skill: str) -> Verdict:
        """As `RulePolicy.judge_tool`."""
        return self._refuse(action) or self._narrowed.judge_tool(action, skill=skill)

    def get_read_denial(self, path: str, *, skill: str) -> str:
        """As `RulePolicy.get_read_denial`."""
        return self._narrowed.get_read_denial(path, skill=skill)

    def effect(self, action: ActionStep) -> Effect:
        return self._narrowed.effect(action)

    def _refuse(self, action: ActionStep) -> Verdict | None:
        if changes_nothing(action, self.effect(action)):
            return None
        return Verdict(decision="deny", reason=_READS_ONLY, rule=_RULE)


def changes_nothing(action: ActionStep, effect: Effect) -> bool:
    """Return True for a call of a tool that changes nothing in the workspace."""
    # A child run may not do more than the run that starts it.
    name, _ = name_call(action)
    return name in (DELEGATE, RUN_TASK) or name in PAGES or effect == "read"


def is_reading(action: ActionStep, effect: Effect, *, root: str) -> bool:
    """Return True for a call that changes nothing, including a shell line whose commands are all known to only read."""
    return changes_nothing(action, effect) if name_call(action)[0] != SHELL else is_reading_command(action, root=root)


def is_reading_command(action: ActionStep, *, root: str) -> bool:
    """Return True for a shell line whose commands are all known to only read the workspace."""
    name, arguments = name_call(action)
    if name != SHELL:
        return False
    line = read_shell_call(build_call(SHELL, frozenset({SHELL}), arguments, root=root), root)
    return all(unit.is_reading for unit in line.units)
