"""The prompt of a past turn, rebuilt from the journal and checked against its recorded hash."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from metier.context.budget import FittedPrompt
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted
from metier.engine.entries.run import ModelChanged
from metier.engine.model.model_call import compose
from metier.engine.model.prompt import Asking
from metier.engine.services import Services, use_model
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.engine.turn_cache import Fingerprints
from metier.errors import UsageError
from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer
from metier.providers.failures import CallFailed


class PastPrompt(Struct, frozen=True, kw_only=True):
    turn: int
    state: RunState
    """State of the run right before the request."""
    fitted: FittedPrompt
    request: ModelRequest
    hash: str
    recorded_hash: str

    @property
    def is_exact(self) -> bool:
        """Return True if the rebuilt request has the recorded hash."""
        return self.hash == self.recorded_hash


def list_turns(entries: Sequence[Entry]) -> tuple[int, ...]:
    """List the turns in which a model was asked."""
    return tuple(dict.fromkeys(entry.turn for entry in entries if isinstance(entry, ModelCallStarted)))


async def rebuild_prompt(run_id: str, entries: Sequence[Entry], services: Services, *, turn: int) -> PastPrompt:
    """Rebuild the first request of a turn. Raises `UsageError` for a turn without one."""
    state = RunState(run_id)
    for entry in entries:
        if isinstance(entry, ModelCallStarted) and entry.turn == turn:
            return await _compose(state, entry, services)
        if isinstance(entry, ModelChanged):
            # Another model has another token counter and budget, which decide what was trimmed.
            services = use_model(services, entry.options, provider=entry.provider)
        apply(state, entry)
    turns = list_turns(entries)
    known = f"It has turns {turns[0]} to {turns[-1]}" if turns else "No model was asked in it"
    raise UsageError(f"Run {run_id!r} has no turn {turn}", hint=known)


async def _compose(state: RunState, call: ModelCallStarted, services: Services) -> PastPrompt:
    counted = replace(services, provider=_Counted(services.provider.name, call.counted_tokens))
    # Older journals do not have it; then the settings decided.
    is_json = services.model.structured_output_mode == "json" if call.is_json is None else call.is_json
    asking = Asking(frozenset(call.disabled_tools), is_json, state.prompt_limit)
    composed = await compose(state, counted, asking=asking)
    return PastPrompt(
        turn=call.turn,
        state=state,
        fitted=composed.fitted,
        request=composed.request,
        hash=Fingerprints().match(composed.request, call.request_hash).hash,
        recorded_hash=call.request_hash,
    )


class _Counted:
    """A provider that returns the recorded token count and rejects requests."""

    def __init__(self, name: str, tokens: int | None) -> None:
        self.name = name
        self._tokens = tokens

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        del request, observe
        raise CallFailed("A prompt that is looked at is not sent")

    async def count_tokens(self, request: ModelRequest) -> int | None:
        del request
        return self._tokens

    async def close(self) -> None:
        return None
