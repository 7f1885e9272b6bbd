"""The ways in which a store can refuse, whatever database is behind it.

StoreError
├── RunUnknown          2   no run of that id
├── RunExists           2   a run of that id is there already
├── ApprovalUnknown     2   no approval of that id
├── LeaseHeld          10   somebody else drives this run
├── LeaseLost          10   somebody else took this run over; nothing was written
├── SeqTaken           10   another entry stands at that place; nothing was written
├── StoreFull           1   no room on the disk; nothing was written
├── StoreDamaged        1   what is read is not what was written
├── BlobUnknown         1   no bytes under that digest
└── StoreUnavailable    1   the database cannot be opened or reached
"""

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
    """Somebody else drives this run."""

    exit_code = 10


class LeaseLost(StoreError):
    """Somebody else took this run over; nothing was written."""

    exit_code = 10


class SeqTaken(StoreError):
    """Another entry stands at that place of the journal; nothing was written."""

    exit_code = 10


class StoreFull(StoreError):
    """No room on the disk; nothing was written."""


class StoreDamaged(StoreError):
    """What is read is not what was written."""


class BlobUnknown(StoreError):
    """No bytes under that digest."""


class StoreUnavailable(StoreError):
    """The database cannot be opened or reached."""
