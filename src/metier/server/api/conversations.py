"""Conversations: create, send a message, read the history. Each turn is a run."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from metier.runtime.chat.chats import ChatRequest, list_chats, open_chat
from metier.runtime.queue.detached import leave_to_workers
from metier.runtime.records.index_rows import iso
from metier.server.api.bodies import (
    Body,
    ConversationDetails,
    ConversationItem,
    OpenedConversation,
    Page,
    PageSize,
    StartedTurn,
    answer,
    answer_page,
)
from metier.server.api.runs import MAX_TEXT, RunLimits, use_limits
from metier.server.idempotency import Document, Key, Once, run_once
from metier.server.problems import HttpProblem
from metier.server.state import State
from metier.store.contexts import ContextState

router = APIRouter(prefix="/conversations", tags=["conversations"])

# The server decodes `%2F` before routes are matched, so a name with a slash would have no address.
_MARKS = r"[^/\\\x00-\x1f]"

type Name = Annotated[str, Path(max_length=255, pattern=rf"^{_MARKS}+$", description="The name of a conversation.")]


class NewConversation(RunLimits):
    name: Annotated[
        str,
        Field(max_length=200, pattern=rf"^{_MARKS}*$", description="Empty generates a name."),
    ] = ""
    agent: Annotated[str, Field(max_length=200)] = ""
    model: Annotated[str, Field(max_length=200)] = ""


class Message(Body):
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]


@router.get("", response_model=Page[ConversationItem])
async def list_conversations(state: State, limit: PageSize = 50) -> Response:
    """List conversations, most recently used first."""
    return answer_page(state, [_as_item(each) for each in await list_chats(state.runtime, limit=limit)])


@router.post("", status_code=201, response_model=OpenedConversation)
async def create_conversation(request: Request, state: State, wanted: NewConversation, key: Key = "") -> Response:
    """Choose name, agent and model of a conversation. It is created with its first message."""

    async def create(once: Once) -> Document:
        # A repeated request must generate the same name.
        name = wanted.name or once.make_run_id()
        asked = ChatRequest(context_id=name, agent=wanted.agent, model=wanted.model)
        chat = await open_chat(use_limits(state, wanted), asked)
        if wanted.agent or wanted.model:
            await chat.save_choices()
        return {"context_id": chat.context_id, "agent": chat.agent_id, "model": chat.answered_by, "is_new": chat.is_new}

    return answer(state, await run_once(request, key, create), status=201)


@router.get("/{name}", response_model=ConversationDetails)
async def get_conversation(
    state: State,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of turns.")] = 100,
) -> Response:
    """Return the turns of a conversation, oldest first, and its open turn, if there is one."""
    if await state.runtime.store.contexts.find_state(name) is None:
        raise HttpProblem(404, "conversation_unknown", f"There is no conversation {name!r}")
    chat = await open_chat(state.runtime, ChatRequest(context_id=name))
    turns = (await chat.list_turns())[-limit:]
    open_turn = await chat.find_open_turn()
    items: list[JsonValue] = [
        {
            "run_id": run.run_id,
            "status": run.status,
            "said": turn.said,
            "answer": turn.answer,
            "notes": list(turn.notes),
        }
        for run, turn in turns
    ]
    waits: JsonValue = None
    if open_turn is not None:
        waits = {"run_id": open_turn.state.run_id, "waits_for": open_turn.waiting.run_id, "kind": open_turn.wait_kind}
    return answer(state, {"context_id": chat.context_id, "agent": chat.agent_id, "turns": items, "open_turn": waits})


@router.post("/{name}/messages", status_code=201, response_model=StartedTurn)
async def send_message(request: Request, state: State, name: Name, wanted: Message, key: Key = "") -> Response:
    """Send a message. The response names the run of the turn: stream its events, then read the conversation."""

    async def send(_once: Once) -> Document:
        chat = await open_chat(state.runtime, ChatRequest(context_id=name))
        started = await chat.send(wanted.text, leave_to_workers(state.queue))
        state.nudge()
        return {"context_id": chat.context_id, "run_id": started.run_id, "status": started.status}

    return answer(state, await run_once(request, key, send), status=201)


def _as_item(state: ContextState) -> Document:
    return {
        "context_id": state.context_id,
        "status": state.task_state,
        "turns": state.current_turn,
        "updated_at": iso(state.updated_at),
    }
