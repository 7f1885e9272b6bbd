"""Errors of stores, independent of the database, with their exit codes. A failed change wrote nothing.

StoreError
├── RunUnknown              2   no run with that id
├── RunExists               2   a run with that id already exists
├── ApprovalUnknown         2   no approval with that id
├── LeaseHeld              10   another process drives this run
├── LeaseLost              10   another process took over this run
├── SeqTaken               10   the journal already has an entry at that position
├── VersionConflictError   10   the state of a context changed since it was read
├── DuplicateMessageError  10   the message is done, or claimed by a worker; has the stored result
├── ClaimLost              10   another worker took over this message
├── BucketFull              1   a waiting context keeps its facts, and there is no room for another
├── ResumeTokenRefused     10   an invalid resume token
├── StoreFull               1   the disk is full
├── StoreDamaged            1   stored data is not what was written
├── BlobUnknown             1   no blob with that digest
└── StoreUnavailable        1   the database cannot be opened or reached
"""

from pydantic import JsonValue

from metier.errors import StoreError


class RunUnknown(StoreError):
    exit_code = 2


class RunExists(StoreError):
    exit_code = 2


class ApprovalUnknown(StoreError):
    exit_code = 2


class LeaseHeld(StoreError):
    exit_code = 10


class LeaseLost(StoreError):
    exit_code = 10


class SeqTaken(StoreError):
    exit_code = 10


class VersionConflictError(StoreError):
    """The state of a context changed since it was read. Read it again, then retry."""

    exit_code = 10


class DuplicateMessageError(StoreError):
    """The message is already done, with `result` as its stored result, or claimed by a worker."""

    exit_code = 10

    def __init__(self, message: str, *, hint: str = "", is_done: bool, result: JsonValue = None) -> None:
        super().__init__(message, hint=hint)
        self.is_done = is_done
        self.result = result


class ClaimLost(StoreError):
    exit_code = 10


class BucketFull(StoreError):
    pass


class ResumeTokenRefused(StoreError):
    """A resume token is invalid."""

    exit_code = 10

    def __init__(self) -> None:
        # One message for every reason, so that a caller can't probe which part of a token is wrong.
        super().__init__(
            "The resume token is not valid", hint="Ask for the state of the conversation, then resume again"
        )


class StoreFull(StoreError):
    pass


class StoreDamaged(StoreError):
    pass


class BlobUnknown(StoreError):
    pass


class StoreUnavailable(StoreError):
    pass
