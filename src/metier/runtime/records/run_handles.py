"""The name under which a program outside knows a run: its id, signed for the door it was begun through.

An id alone can be read in a listing; a handle cannot be made up. So a peer reaches the runs that were begun for it
and no other, also after the process that issued the handle is gone: nothing is kept, the signature is computed again.
"""

import hmac
import json

from metier.runtime.host import Host
from metier.runtime.records.seals import identify_store, load_store_secrets

_SIGNATURE_CHARACTERS = 32
_LONGEST = 200


def issue_handle(place: Host, run_id: str, *, door: str) -> str:
    """Raises `StoreUnavailable` where this user has no place for a key."""
    return f"{run_id}.{_sign(place, run_id, door=door, secret=load_store_secrets(place)[0])}"


def read_handle(place: Host, handle: str, *, door: str) -> str | None:
    """The id of the run; nothing for a handle that was not issued here, for this door. Raises `StoreUnavailable`."""
    run_id, separator, signature = handle.rpartition(".")
    if not separator or not run_id or len(handle) > _LONGEST or not handle.isascii():
        return None
    wanted = [_sign(place, run_id, door=door, secret=secret) for secret in load_store_secrets(place)]
    return run_id if any(hmac.compare_digest(each, signature) for each in wanted) else None


def _sign(place: Host, run_id: str, *, door: str, secret: bytes) -> str:
    words = json.dumps(["metier run handle 1", door, run_id, identify_store(place)])
    return hmac.digest(secret, words.encode(), "sha256").hex()[:_SIGNATURE_CHARACTERS]
