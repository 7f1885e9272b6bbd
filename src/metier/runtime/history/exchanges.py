"""One turn of a model as it went over the wire, in the format of no vendor: the whole request and the whole reply."""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.journal import read_entries
from metier.engine.model.debug_bodies import dump_request
from metier.engine.model.past_prompts import find_turns, rebuild_prompt
from metier.errors import UsageError
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.history.replays import build_replay_services
from metier.runtime.runs import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    turn: int
    turns: tuple[int, ...]
    """Those in which a model was asked."""
    request: str
    """As JSON, made anew from the journal; without the secrets of the host."""
    request_hash: str
    is_exact: bool
    """The request is what was sent, byte for byte, by the hash that was recorded then."""
    replies: tuple[str, ...]
    """As JSON; a second one where the first could not be used. None where no reply came."""


async def read_exchange(runtime: Runtime, run_id: str, turn: int) -> Exchange:
    """Raises `UsageError` for a turn in which no model was asked."""
    entries = await read_entries(runtime.store, run_id)
    turns = find_turns(entries)
    if turn not in turns:
        known = f"It has turns {turns[0]} to {turns[-1]}" if turns else "No model was asked in it"
        raise UsageError(f"Run {run_id!r} has no turn {turn}", hint=known)
    services = await build_replay_services(runtime.place, runtime.store, entries)
    past = await rebuild_prompt(run_id, entries, services, turn=turn)
    clean = build_place_cleaner(runtime.place).value
    return Exchange(
        turn=turn,
        turns=turns,
        request=_render(clean(dump_request(past.request))),
        request_hash=past.recorded_hash,
        is_exact=past.is_exact,
        replies=tuple(_render(clean(reply)) for reply in _list_replies(entries, turn)),
    )


def _list_replies(entries: Sequence[e.Entry], turn: int) -> list[JsonValue]:
    replied = [entry for entry in entries if isinstance(entry, e.ModelReplied) and entry.turn == turn]
    return [entry.reply.model_dump(mode="json", exclude_defaults=True) for entry in replied]


def _render(value: JsonValue) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
