"""What the event log says of changes that were taken back. Pure values."""

from metier.events import Payload


class UndoStarted(Payload):
    """Files are about to become what they were before a step."""

    event_type = "undo_started"
    undo_id: str
    to_step: str
    files: tuple[str, ...] = ()
    undone_by: str = ""


class UndoFinished(Payload):
    """The files are what they were, but for those that are named."""

    event_type = "undo_finished"
    undo_id: str
    files: int = 0
    left_alone: tuple[str, ...] = ()
