"""What the event log says of project instructions. Pure values."""

from metier.events import Payload
from metier.messages import Value


class InstructionFile(Value):
    path: str
    sha256: str
    """Of its bytes and of those of its imports."""
    imports: tuple[str, ...] = ()
    left_out_characters: int = 0
    trusted: bool = True
    """False for the text of a folder that the user has not trusted: the model reads it fenced."""


class ProjectInstructionsLoaded(Payload):
    """Files such as `AGENTS.md` were put in front of the model: at the start, or when a step came near them."""

    event_type = "project_instructions_loaded"
    files: tuple[InstructionFile, ...]
    step_id: str = ""
    """The step that came near them; empty at the start of a run."""
    problems: tuple[str, ...] = ()
    """What was left out of them, and why."""

    @property
    def summary(self) -> str:
        names = [file.path if file.trusted else f"{file.path} (not trusted)" for file in self.files]
        return "; ".join([", ".join(names), *self.problems])
