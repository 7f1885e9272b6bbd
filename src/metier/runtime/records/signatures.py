"""Signatures by which a store recognizes its own runs: seals, handles for other programs, resume tokens.

Signatures are not stored, but computed again to verify them.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace
from pydantic_core import to_json

from metier.definitions.files.whole_file import identify_file
from metier.engine.entries.entry import Entry, parse_entry, render_entry
from metier.engine.entries.run import RunAdopted, RunStarted
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.errors import StoreError, UsageError
from metier.runtime.host import Host
from metier.skills.git_clones import is_tracked
from metier.store.backend import DATABASE
from metier.store.failures import ResumeTokenRefused, StoreUnavailable
from metier.store.local_secret import load_local_secret, read_given_secrets
from metier.store.resume_tokens import (
    LIFETIME_SECONDS,
    ResumeKeys,
    TokenSubject,
    check_token,
    load_resume_keys,
    sign_token,
)
from metier.values import dump_fields

# In hex: 128 bits can't be guessed.
_SIGNATURE_CHARACTERS = 32
_MAX_HANDLE_CHARACTERS = 200


# The seal is bound to the run, to the entry that carries it and to the identity of the database file. Archives don't
# contain it, and a copied or cloned database is another file, so runs from elsewhere are never taken for own ones.
def seal[T: (RunStarted, RunAdopted)](entry: T, host: Host, run_id: str) -> T:
    """Seal the entry for this store. Without a secret, for example in a read-only home, it stays unsealed."""
    try:
        secret = load_store_secrets(host)[0]
    except (UsageError, StoreUnavailable):
        return entry
    return replace(entry, seal=_sign_seal(entry, run_id, store=_list_identities(host)[0], secret=secret))


def is_started_here(host: Host, run_id: str, entries: Sequence[Entry]) -> bool:
    """Return True if the run was started, forked or adopted in this store, not copied into it."""
    last = next((entry for entry in reversed(entries) if isinstance(entry, RunAdopted)), entries[0])
    assert isinstance(last, RunStarted | RunAdopted), "a journal begins with the start of its run"
    if not last.seal:
        return False
    try:
        candidates = [
            _sign_seal(last, run_id, store=store, secret=secret)
            for secret in load_store_secrets(host)
            for store in _list_identities(host)
        ]
    except (UsageError, StoreUnavailable):
        return False
    is_ours = any(hmac.compare_digest(candidate, last.seal) for candidate in candidates)
    # A repository can contain a database at the same path, which a checkout writes over the user's own one.
    return is_ours and not (host.settings.store.backend == "sqlite" and is_tracked(host.runs / DATABASE))


def unseal(entry: Entry) -> Entry:
    """Remove the seal, for archives."""
    return replace(entry, seal="") if isinstance(entry, RunStarted | RunAdopted) else entry


def _sign_seal(entry: RunStarted | RunAdopted, run_id: str, *, store: str, secret: bytes) -> str:
    words = json.dumps(["metier run seal 1", run_id, digest_start(entry), store])
    return hmac.digest(secret, words.encode(), "sha256").hex()


def digest_start(entry: RunStarted | RunAdopted) -> str:
    """Hash the start of a run for its seal, as 0.1 and 0.2 did, so that their runs stay recognized."""
    # Encode and decode first: an `int` in a `float` field is rendered differently after it was read from the journal.
    stored = parse_entry(render_entry(unseal(entry)))
    # With pydantic and all fields, because older versions sealed these bytes; msgspec renders large floats differently.
    return hashlib.sha256(to_json(dump_fields(stored), inf_nan_mode="null")).hexdigest()


def load_store_secrets(host: Host) -> tuple[bytes, ...]:
    """Load the secrets for signatures: the given ones, or that of this user for a local database.

    A database server without given secrets has a constant: its writers are trusted, and its workers have different
    home folders.
    """
    if given := read_given_secrets(host.environ):
        return given
    is_file = host.settings.store.backend == "sqlite"
    return (load_local_secret(host.home) if is_file else host.settings.store.backend.encode(),)


def _list_identities(host: Host) -> tuple[str, ...]:
    """Return the identity of the store, then the one that 0.2 used.

    It identifies the database file instead of its path, because a workspace may be renamed, and has no device number,
    which may change at boot. 0.2 used the inode number alone.
    """
    if host.settings.store.backend != "sqlite":
        return (host.settings.store.backend,)
    try:
        # More than the inode number, because a copy may get the number of a deleted database.
        identity = identify_file(Path(host.runs / DATABASE))
    except OSError:
        return ("",)
    return identity, identity.partition(":")[0]


# IDs are listed, but a handle can't be guessed. So a peer reaches only runs that were started for it, and it still can
# after the process that issued the handle has ended.
def issue_handle(host: Host, run_id: str, *, protocol: str) -> str:
    """Issue a handle. Raises `StoreUnavailable` if no key can be stored for this user."""
    secret, store = load_store_secrets(host)[0], _list_identities(host)[0]
    return f"{run_id}.{_sign_handle(run_id, protocol, store=store, secret=secret)}"


def read_handle(host: Host, handle: str, *, protocol: str) -> str | None:
    """Return the run's ID, or None for a handle that was not issued for this protocol. Raises `StoreUnavailable`."""
    run_id, separator, signature = handle.rpartition(".")
    if not separator or not run_id or len(handle) > _MAX_HANDLE_CHARACTERS or not handle.isascii():
        return None
    # All secrets and identities, because keys can be rotated and 0.2 signed with another identity.
    wanted = [
        _sign_handle(run_id, protocol, store=store, secret=secret)
        for secret in load_store_secrets(host)
        for store in _list_identities(host)
    ]
    # In constant time, so that a peer can't guess a signature byte by byte.
    return run_id if any(hmac.compare_digest(each, signature) for each in wanted) else None


def _sign_handle(run_id: str, protocol: str, *, store: str, secret: bytes) -> str:
    words = json.dumps(["metier run handle 1", protocol, run_id, store])
    return hmac.digest(secret, words.encode(), "sha256").hex()[:_SIGNATURE_CHARACTERS]


# The token covers the last entry of the run and of the child that asks. Resuming the run appends an entry, so a token
# works once and can't answer a later question.
def issue_token(host: Host, state: RunState, *, waiting: RunState) -> str:
    """Issue a resume token; empty if the run doesn't wait, or if no key can be stored."""
    if waiting.pause is None or state.phase in FINAL:
        return ""
    try:
        keys = _load_keys(host)
    except (StoreError, UsageError):
        return ""
    expires_at = host.clock.now() + timedelta(seconds=LIFETIME_SECONDS)
    return sign_token(_bind(state, waiting), version=state.seq, turn=state.turn, expires_at=expires_at, keys=keys)


def check_run_token(host: Host, token: str, state: RunState, *, waiting: RunState) -> None:
    """Raise `ResumeTokenRefused` for a token of another run, an earlier question, or a foreign signature."""
    found = check_token(token, _bind(state, waiting), keys=_load_keys(host), now=host.clock.now())
    if found is None or (found.version, found.turn) != (state.seq, state.turn):
        raise ResumeTokenRefused


def _bind(state: RunState, waiting: RunState) -> TokenSubject:
    return TokenSubject(context_id=state.run_id, bound_to=f"{waiting.run_id} {waiting.seq}")


def _load_keys(host: Host) -> ResumeKeys:
    return load_resume_keys(host.runs, host.environ, home=host.home)
