"""The ways in which a store can refuse, whatever database is behind it.

StoreError
├── RunUnknown          2   no run of that id
├── RunExists           2   a run of that id is there already
├── ApprovalUnknown     2   no approval of that id
├── LeaseHeld          10   another process drives this run
├── LeaseLost          10   another process took this run over; nothing was written
├── SeqTaken           10   another entry stands at that place; nothing was written
├── VersionConflictError  10  the state of a context is no longer the one that was read; nothing was written
├── DuplicateMessageError 10  this message was done before, or a worker has claimed it; carries the stored result
├── ClaimLost          10   another worker took this message over; nothing was written
├── BucketFull          1   a context that waits keeps its facts; there is no room for another
├── ResumeTokenRefused 10   a resume token that is not good, for whatever reason
├── StoreFull           1   no room on the disk; nothing was written
├── StoreDamaged        1   what is read is not what was written
├── BlobUnknown         1   no bytes under that digest
└── StoreUnavailable    1   the database cannot be opened or reached
"""

from pydantic import JsonValue

from metier.errors import StoreError


class RunUnknown(StoreError):
    """No run of that id."""

    exit_code = 2


class RunExists(StoreError):
    """A run of that id is there already."""

    exit_code = 2


class ApprovalUnknown(StoreError):
    """No approval of that id."""

    exit_code = 2


class LeaseHeld(StoreError):
    """Another process drives this run."""

    exit_code = 10


class LeaseLost(StoreError):
    """Another process took this run over; nothing was written."""

    exit_code = 10


class SeqTaken(StoreError):
    """Another entry stands at that place of the journal; nothing was written."""

    exit_code = 10


class VersionConflictError(StoreError):
    """The state of a context is no longer the one that was read; nothing was written. Read it again, then retry."""

    exit_code = 10


class DuplicateMessageError(StoreError):
    """This message was done before, with `result` as its stored result; or a worker has claimed it and is not done."""

    exit_code = 10

    def __init__(self, message: str, *, hint: str = "", is_done: bool, result: JsonValue = None) -> None:
        super().__init__(message, hint=hint)
        self.is_done = is_done
        self.result = result


class ClaimLost(StoreError):
    """Another worker took this message over; nothing was written."""

    exit_code = 10


class BucketFull(StoreError):
    """A context that waits for an answer keeps its facts; there is no room for another."""


class ResumeTokenRefused(StoreError):
    """A resume token that is not valid. Every reason gives the same message, so that a caller cannot tell which."""

    exit_code = 10

    def __init__(self) -> None:
        super().__init__(
            "The resume token is not valid", hint="Ask for the state of the conversation, then resume again"
        )


class StoreFull(StoreError):
    """No room on the disk; nothing was written."""


class StoreDamaged(StoreError):
    """What is read is not what was written."""


class BlobUnknown(StoreError):
    """No bytes under that digest."""


class StoreUnavailable(StoreError):
    """The database cannot be opened or reached."""
