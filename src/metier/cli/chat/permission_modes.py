"""The permission mode of a chat, which answers some of the profile's questions without the user.

A mode never allows more than the host: a call that a rule denies stays denied, and a rule that asks still asks. Plan
mode also denies changes that a rule allows, and no mode approves writing a file that runs by itself. Each
decision is in the journal with the mode as its reason.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from metier.approval.profile import is_profile_reason
from metier.definitions.names import Profile
from metier.errors import UsageError
from metier.ids import get_user
from metier.runtime.approval_questions import ApprovalQuestion, Asker, Reply

type Mode = Literal["ask", "accept edits", "plan", "auto"]
MODES: tuple[Mode, ...] = get_args(Mode.__value__)
SUMMARIES: dict[Mode, str] = {
    "ask": "asks before anything but reading",
    "accept edits": "writes files without asking, asks before the rest",
    "plan": "only reads, and ends with a plan to approve",
    "auto": "asks only if a rule says so",
}
EDITS = frozenset({"Write", "Edit"})
PLAN_NOTE = (
    "[Plan mode: only reading is allowed until the user approves a plan. Look around as needed, change nothing, "
    "and end with a short numbered plan of the changes.]"
)
CARRY_OUT = "Carry out the plan."
_DENIED = "Plan mode: only reading is allowed. Put this step into the plan instead"


class PermissionModes:
    """The mode of one chat, and the `Asker` that applies it."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self.mode: Mode = "ask"

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        if self.mode == "plan":
            return Reply(decision="denied", by=get_user(), reason=_DENIED)
        # Writing a file that is executed automatically, such as a git hook, always needs the user's approval.
        is_default = (
            question.asked is not None
            and is_profile_reason(question.asked.reason)
            and not (question.tool in EDITS and question.writes_running_file)
        )
        if is_default and (self.mode == "auto" or (self.mode == "accept edits" and question.tool in EDITS)):
            return Reply(decision="approved", by=get_user(), reason=f"Permission mode: {self.mode}")
        return await self._ask(question)

    def deny_changes(self) -> str:
        """Return why only reading is allowed in this mode; empty if more is."""
        return _DENIED if self.mode == "plan" else ""

    def cycle(self, profile: Profile) -> None:
        modes = list_modes(profile)
        if self.mode in modes:
            self.mode = modes[(modes.index(self.mode) + 1) % len(modes)]

    def choose(self, name: str, profile: Profile) -> None:
        """Raises `UsageError` for a mode that does not exist or that the profile does not allow."""
        modes = list_modes(profile)
        chosen: Mode | None = next((mode for mode in MODES if mode == name.replace("-", " ").strip()), None)
        if chosen is None:
            raise UsageError(f"There is no permission mode {name!r}", hint=f"Use one of: {', '.join(MODES)}")
        if chosen not in modes:
            hint = "Start the chat with `--profile guarded`" if profile == "permissive" else f"Use {' or '.join(modes)}"
            raise UsageError(f"Profile {profile!r} does not have the permission mode {chosen!r}", hint=hint)
        self.mode = chosen


def list_modes(profile: Profile) -> Sequence[Mode]:
    """List the modes that a profile offers. `permissive` offers none, because it asks nothing."""
    match profile:
        case "permissive":
            return ()
        case "guarded":
            return MODES
        case "strict":
            return ("ask", "plan")
