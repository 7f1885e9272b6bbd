"""PostgreSQL's exceptions in the words of `store.failures`. Nothing above this room sees one of `psycopg`."""

from typing import NamedTuple

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from metier.errors import StoreError
from metier.store.failures import StoreDamaged, StoreFull, StoreUnavailable


class _Meaning(NamedTuple):
    kind: type[StoreError]
    fact: str
    hint: str


_BACKUP = "Restore the database from a backup; what was acknowledged before may be gone"
_REPORT = "Try again; if it happens again, report it with this message"
_ADDRESS = "Check the address, the user and the password of the database"
_RIGHTS = "Give the user of the address the right to create and change tables there"

_GONE = _Meaning(StoreUnavailable, "does not answer", "Start the server, or correct the address; then resume the run")
_BUSY = _Meaning(StoreUnavailable, "has no connection left", "Raise max_connections of the server, or use a pooler")
_FULL = _Meaning(StoreFull, "has no room to grow", "Free some space on the server, then resume the run")
_UNUSABLE = _Meaning(StoreUnavailable, "cannot be used", _REPORT)

_BY_STATE = {
    "53100": _FULL,
    "53300": _BUSY,
    "58030": _Meaning(StoreUnavailable, "reports an error of its disk", "Look at the log of the server"),
    "42501": _Meaning(StoreUnavailable, "does not let this user do that", _RIGHTS),
    "25006": _Meaning(StoreUnavailable, "only reads", "Use the address of the primary server"),
    "3D000": _Meaning(StoreUnavailable, "has no such database", "Create it with createdb, or correct the address"),
    "28": _Meaning(StoreUnavailable, "does not let this user in", _ADDRESS),
    "XX001": _Meaning(StoreDamaged, "is damaged", _BACKUP),
    "XX002": _Meaning(StoreDamaged, "is damaged", _BACKUP),
    "23": _Meaning(StoreDamaged, "contradicts itself", _BACKUP),
    "08": _GONE,
    "57": _GONE,
    "53": _BUSY,
}
"""By the SQLSTATE, or by its first two characters."""

_SURELY_GONE = ("08", "57P", "25006")
_TRY_AGAIN = ("40", "55P03", "57014")


def is_lost(error: psycopg.Error) -> bool:
    """The connection broke or the server is going down or coming up: whether the last commit counts is not known."""
    if isinstance(error, PoolTimeout):
        return True
    state = error.sqlstate or ""
    if state:
        return state.startswith((*_SURELY_GONE, *_TRY_AGAIN))
    return isinstance(error, psycopg.OperationalError)


def build_failure(error: psycopg.Error, shown: str) -> StoreError:
    meaning = _find_meaning(error)
    primary = error.diag.message_primary or str(error).strip().partition("\n")[0]
    name = error.sqlstate or type(error).__name__
    return meaning.kind(f"The run store '{shown}' {meaning.fact} ({name}: {primary})", hint=meaning.hint)


def build_closed(shown: str) -> StoreUnavailable:
    return StoreUnavailable(f"The run store '{shown}' is closed", hint="Open it again")


def is_closed(error: psycopg.Error) -> bool:
    return isinstance(error, PoolClosed)


def _find_meaning(error: psycopg.Error) -> _Meaning:
    state = error.sqlstate or ""
    if not state:
        return _GONE if isinstance(error, psycopg.OperationalError) else _UNUSABLE
    return _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or _UNUSABLE
