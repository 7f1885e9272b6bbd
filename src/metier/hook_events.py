"""What the event log says of hooks. Pure values."""

from metier.events import Payload


class HooksRan(Payload):
    """The user's commands for one moment of the run ended, and this is what they said together."""

    event_type = "hooks_ran"
    hook_event: str
    """The moment: `PreToolUse`, `Stop` and so on."""
    step_id: str = ""
    commands: tuple[str, ...] = ()
    """What ran, in order."""
    failures: tuple[str, ...] = ()
    """Commands that hung, crashed or printed too much, each with the reason."""
    messages: tuple[str, ...] = ()
    """What they say to the user."""
    decision: str = ""
    """`deny`, `ask`, `stop`, or nothing."""
    reason: str = ""
    changed_call: bool = False
    """The call has other arguments now."""
    added_text: bool = False
    """The model is told something."""

    @property
    def summary(self) -> str:
        said = [f"{self.decision}: {self.reason}" if self.decision else "", *self.messages]
        effect = "changed the call" if self.changed_call else ""
        return "; ".join(text for text in (*said, effect, *self.failures) if text)
