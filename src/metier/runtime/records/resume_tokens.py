"""The resume token of a run that waits: it is good while the run stands as it stood when the token was given.

Nothing is kept: the token signs the last entry of the run and of the run below it that asks. Whatever goes on with the
run appends an entry, so a token works once, and never answers a question that came later.
"""

from datetime import timedelta

from metier.engine.phases import FINAL
from metier.engine.state import RunState
from metier.errors import StoreError, UsageError
from metier.runtime.host import Host
from metier.store.failures import ResumeTokenRefused
from metier.store.tokens import LIFETIME_SECONDS, ResumeKeys, Wanted, check_token, load_resume_keys, sign_token


def issue_token(place: Host, state: RunState, *, waiting: RunState) -> str:
    """Empty where the run does not wait, and where this user has no place for a key."""
    if waiting.pause is None or state.phase in FINAL:
        return ""
    try:
        keys = _load_keys(place)
    except (StoreError, UsageError):
        return ""
    expires_at = place.clock.now() + timedelta(seconds=LIFETIME_SECONDS)
    return sign_token(_bind(state, waiting), version=state.seq, turn=state.turn, expires_at=expires_at, keys=keys)


def check_run_token(place: Host, token: str, state: RunState, *, waiting: RunState) -> None:
    """Raises `ResumeTokenRefused` for a token of another run, of an earlier question, or of no signature of ours."""
    found = check_token(token, _bind(state, waiting), keys=_load_keys(place), now=place.clock.now())
    if found is None or (found.version, found.turn) != (state.seq, state.turn):
        raise ResumeTokenRefused


def _bind(state: RunState, waiting: RunState) -> Wanted:
    return Wanted(context_id=state.run_id, bound_to=f"{waiting.run_id} {waiting.seq}")


def _load_keys(place: Host) -> ResumeKeys:
    return load_resume_keys(place.runs, place.environ, home=place.home)
