"""The events of a run: as a stream (SSE) that continues where it was cut, or as a page of JSON."""

import json
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from pydantic import JsonValue
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from metier.server.api.answers import Listing, PageSize, answer_page
from metier.server.api.runs import RunName
from metier.server.feed import Place, Told, Watcher, parse_place, read_past
from metier.server.idempotency import Document
from metier.server.problems import HttpProblem
from metier.server.state import ServerState, State
from metier.store.base import ENDED

router = APIRouter(prefix="/runs", tags=["runs"])

PING_SECONDS = 15
SEND_SECONDS = 20
"""Time that a client may take for one piece; a slower one is disconnected and may reconnect."""
_TOGETHER = 64
"""Events that are sent in one piece."""
_SETTLE_SECONDS = 0.2
_LAST = frozenset({"run_finished", "run_failed"})


@router.get(
    "/{run}/events",
    response_model=Listing,
    responses={200: {"content": {"text/event-stream": {}}, "description": "A page, or a stream of events."}},
)
async def get_events(
    request: Request,
    state: State,
    run: RunName,
    after: Annotated[str, Query(max_length=100, description="Only events behind this one, by its `id`.")] = "",
    last_event_id: Annotated[str, Header(alias="Last-Event-ID", max_length=100)] = "",
    limit: PageSize = 200,
) -> Response:
    """With `Accept: text/event-stream`: every event until the run ends, each once, with an `id` to continue behind.

    Otherwise a page of JSON: continue with `after`, the last `id`; `next` is always 0.
    """
    row = await state.runtime.find(run)
    place = _parse(last_event_id or after)
    if "text/event-stream" in request.headers.get("accept", ""):
        if state.feed.watchers >= state.options.max_watchers:
            raise HttpProblem(503, "too_many_watchers", "Too many event streams are open", hint="Try again later")
        return stream(state, row.run_id, place)
    told = await read_past(state.runtime, row.run_id, after=place)
    items: list[Document] = [_as_item(each) for each in told[:limit]]
    return answer_page(state, items)


def stream(state: ServerState, run_id: str, after: Place) -> Response:
    return EventSourceResponse(
        _stream(state, run_id, after), ping=PING_SECONDS, send_timeout=SEND_SECONDS, headers={"x-accel-buffering": "no"}
    )


async def _stream(state: ServerState, run_id: str, after: Place) -> AsyncGenerator[ServerSentEvent | bytes]:
    async with state.feed.watch(run_id, after=after) as watcher:
        async for event in _follow(state, run_id, watcher):
            yield event


async def _follow(state: ServerState, run_id: str, watcher: Watcher) -> AsyncGenerator[ServerSentEvent | bytes]:
    patience = float(PING_SECONDS)
    while (told := await watcher.next(seconds=patience)) is not None:
        for number in range(0, len(told), _TOGETHER):
            yield b"".join(each.message for each in told[number : number + _TOGETHER])
        if any(each.record.event_type in _LAST for each in told):
            # Its driver writes the record and lets go of it; a moment later the run is over.
            patience = _SETTLE_SECONDS
        if (not told or patience == _SETTLE_SECONDS) and await _is_over(state, run_id):
            # What came between the last event and the look is still there to be read.
            if rest := await watcher.next(seconds=_SETTLE_SECONDS):
                yield b"".join(each.message for each in rest)
            yield ServerSentEvent(data="{}", event="end")
            return


async def _is_over(state: ServerState, run_id: str) -> bool:
    row = await state.runtime.store.find_run(run_id)
    return row is None or (row.status in ENDED and not row.driver)


def _as_item(told: Told) -> Document:
    record: JsonValue = json.loads(told.text)
    return {"id": told.place.render(), "record": record}


def _parse(text: str) -> Place:
    if not text:
        return Place()
    place = parse_place(text)
    if place is None:
        raise HttpProblem(400, "event_id_invalid", "This is no id of an event", hint="Send an id as it came")
    return place
