"""Was this run started in this store? Told by a seal that only a secret of the store's user can make.

The seal is bound to the run, to the entry that carries it and to the very file of the database: it is in no archive,
and a database that was copied, cloned or unpacked is another file.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from pathlib import Path

from metier.engine import entries as e
from metier.engine.entries import render_entry
from metier.errors import UsageError
from metier.runtime.host import Host
from metier.skills.git.clones import is_tracked
from metier.store.failures import StoreUnavailable
from metier.store.local_secret import load_local_secret, read_given_secrets
from metier.store.opening import DATABASE


def seal[T: (e.RunStarted, e.RunAdopted)](entry: T, place: Host, run_id: str) -> T:
    """The entry with the seal of this store; without one where there is no secret, e.g. in a home that is read-only."""
    try:
        secret = load_store_secrets(place)[0]
    except (UsageError, StoreUnavailable):
        return entry
    return entry.model_copy(update={"seal": _sign(entry, place, run_id, secret=secret)})


def is_started_here(place: Host, run_id: str, entries: Sequence[e.Entry]) -> bool:
    """The run was started, forked or adopted in this store, and not brought to it."""
    last = next((entry for entry in reversed(entries) if isinstance(entry, e.RunAdopted)), entries[0])
    assert isinstance(last, e.RunStarted | e.RunAdopted), "a journal begins with the start of its run"
    if not last.seal:
        return False
    try:
        candidates = [_sign(last, place, run_id, secret=secret) for secret in load_store_secrets(place)]
    except (UsageError, StoreUnavailable):
        return False
    is_ours = any(hmac.compare_digest(candidate, last.seal) for candidate in candidates)
    # A repository that brings a database writes it into the place of one's own.
    return is_ours and not (place.settings.store.backend == "sqlite" and is_tracked(place.runs / DATABASE))


def unseal(entry: e.Entry) -> e.Entry:
    """As it goes into an archive and comes out of one."""
    return entry.model_copy(update={"seal": ""}) if isinstance(entry, e.RunStarted | e.RunAdopted) else entry


def _sign(entry: e.RunStarted | e.RunAdopted, place: Host, run_id: str, *, secret: bytes) -> str:
    digest = hashlib.sha256(render_entry(unseal(entry))).hexdigest()
    words = json.dumps(["metier run seal 1", run_id, digest, identify_store(place)])
    return hmac.digest(secret, words.encode(), "sha256").hex()


def load_store_secrets(place: Host) -> tuple[bytes, ...]:
    """Of a database server: who may write to it is trusted, and its workers have different homes."""
    if given := read_given_secrets(place.environ):
        return given
    is_file = place.settings.store.backend == "sqlite"
    return (load_local_secret(place.home) if is_file else place.settings.store.backend.encode(),)


def identify_store(place: Host) -> str:
    """The inode and not the path: a workspace may be renamed. Device numbers change from boot to boot."""
    if place.settings.store.backend != "sqlite":
        return place.settings.store.backend
    try:
        return str(Path(place.runs / DATABASE).stat().st_ino)
    except OSError:
        return ""
