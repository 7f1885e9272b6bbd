"""The default of each profile when no rule matches. Pure."""

from typing import Literal

from metier.approval.rules import ALLOW, Verdict
from metier.decisions import ActionStep, find_invocation
from metier.definitions.names import Profile, name_capability
from metier.tools.effects import Effect
from metier.tools.toolbox import Toolbox

READING_ACTIONS = frozenset({"call_skill", "ask_user", "finish"})
READING_TOOLS = frozenset({"read_skill_files", "skill_search", "plan"})
"""Control tools that only read."""


# Journals contain these reasons and replays compare them, so their wording must not change.
_HIGH_RISK = "asks before calls of high risk"
_CLAIM = "does not take a tool's own word that it only reads"
_NOT_READING = "asks before anything that is not reading"
READ_ONLY = "It only reads, and runs in the read-only sandbox"
WRITE_ACCESS = "It needs write access: in the read-only sandbox it failed with"

type ReadingLevel = Literal["full", "kernel", "none"]
"""The sandbox level of commands that run without approval."""


def read_profile(name: str) -> Profile:
    """Return the profile that a journal names. An unknown one, such as one of a later version, counts as guarded."""
    match name:
        case "permissive" | "guarded" | "strict":
            return name
        case _:
            return "guarded"


def is_profile_reason(reason: str) -> bool:
    """Return True if the reason of an approval is a profile's default and not a rule."""
    if reason.startswith(WRITE_ACCESS):
        return True
    known = (
        f"Profile {profile!r} {why}" for profile in ("guarded", "strict") for why in (_HIGH_RISK, _CLAIM, _NOT_READING)
    )
    return reason in known


class ProfilePolicy:
    """Permissive allows; guarded and strict ask before anything that is more than reading."""

    def __init__(self, profile: Profile, tools: Toolbox, *, reading: ReadingLevel | None = None) -> None:
        """`reading` is the level of the read-only sandbox.

        None means a run of an older version, which asked about every command and every child run.
        """
        self._profile = profile
        self._tools = tools
        self._reading = reading

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:  # noqa: ARG002 - rules of a skill come with rules
        if not self.asks:
            return ALLOW
        if self.effect(action) == "read":
            tool = self._tools.find(str(action.params.get("tool", "")))
            if tool is not None and tool.info.risk == "high":
                return Verdict(decision="ask", reason=f"Profile {self._profile!r} {_HIGH_RISK}")
            # The claim of an MCP server that its tool only reads classifies the tool, but does not skip the question.
            if not self._is_claim(action):
                return ALLOW
            return Verdict(decision="ask", reason=f"Profile {self._profile!r} {_CLAIM}")
        is_child = action.type == "delegate" and self._reading is not None
        reason = f"Profile {self._profile!r} {_NOT_READING}"
        return Verdict(decision="ask", reason=reason, is_child_question=is_child)

    def judge_reading(self) -> Verdict | None:
        """Return the verdict that lets a read-only command run unasked; None if there is no sandbox for it."""
        if not self.asks or self._reading in (None, "none"):
            return None
        return Verdict(decision="allow", reason=READ_ONLY, read_only=True)

    @property
    def asks(self) -> bool:
        """Return True if the profile asks about some calls."""
        return self._profile != "permissive"

    def _is_claim(self, action: ActionStep) -> bool:
        tool = self._tools.find(str(action.params.get("tool", "")))
        return tool is not None and tool.info.is_claim

    def effect(self, action: ActionStep) -> Effect:
        is_invocation = find_invocation(action) is not None
        if action.type in READING_ACTIONS and not is_invocation:
            return "read"
        name = name_capability(str(action.params["skill"])) if is_invocation else str(action.params.get("tool", ""))
        if name in READING_TOOLS:
            return "read"
        if action.type == "delegate" or name == "run_task":
            # The ID of the child run derives from the step, so repeating the call never starts a second run.
            return "keyed"
        tool = self._tools.find(name)
        # `opaque`: a call of an unknown tool is never repeated without asking the user.
        return tool.info.effect if tool is not None else "opaque"
