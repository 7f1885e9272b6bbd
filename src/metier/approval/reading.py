"""The policy of a run that may only read, because it shares a workspace or because its chat is in plan mode. Pure."""

from metier.approval.chain import ChainPolicy
from metier.approval.judge import DELEGATE, RUN_TASK, RulePolicy, name_call
from metier.approval.rules import SHELL
from metier.approval.shell import build_call, read_shell_call
from metier.approval.verdict import Verdict
from metier.decisions import ActionStep
from metier.tools.effects import Effect

REASON = "This run works beside others in the same workspace, so it may only read; say what should be changed instead"
RULE = "reads only"
PAGES = frozenset({"WebFetch", "WebSearch"})
"""They tell a stranger what is asked for, which the rules speak of, and change nothing in the workspace."""


class ReadingPolicy:
    """Denies what is more than reading, and leaves the rest to the policy that it narrows."""

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
        return Verdict(decision="deny", reason=REASON, rule=RULE)


def changes_nothing(action: ActionStep, effect: Effect) -> bool:
    """Return True for a call of a tool that changes nothing in the workspace."""
    # A child run may not do more than the run that starts it.
    name, _ = name_call(action)
    return name in (DELEGATE, RUN_TASK) or name in PAGES or effect == "read"


def is_reading(action: ActionStep, effect: Effect, *, root: str) -> bool:
    """Return True for a call that changes nothing, also for a shell line whose commands are all known to read only."""
    return changes_nothing(action, effect) if name_call(action)[0] != SHELL else is_reading_command(action, root=root)


def is_reading_command(action: ActionStep, *, root: str) -> bool:
    """Return True for a shell line whose commands are all known to look at the workspace only."""
    name, arguments = name_call(action)
    if name != SHELL:
        return False
    line = read_shell_call(build_call(SHELL, frozenset({SHELL}), arguments, root=root), root)
    return all(unit.is_reading for unit in line.units)
