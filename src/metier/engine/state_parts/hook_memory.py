"""What a run knows of its hooks, beside what its steps know. `hooks.apply_hooks` changes it; nothing here does I/O."""

from dataclasses import dataclass, field

from metier.engine.entries.step import HooksRan


@dataclass(slots=True)
class HookMemory:
    """What the journal says of hooks that are about the run as a whole."""

    done: set[str] = field(default_factory=set[str])
    context: list[str] = field(default_factory=list[str])
    """What the model is told beside the task."""
    blocked: HooksRan | None = None
    """The run was not let begin, or was ended."""
    is_notified: bool = False
    """Of the present pause."""
    is_asked_to_stop: bool = False
    """`Stop` hooks have spoken about the present result."""
    blocks: int = 0
    """How often a hook did not let the run finish."""
