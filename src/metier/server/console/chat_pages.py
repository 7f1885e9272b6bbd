"""Pages of conversations: the list, the turns of one, and its next message."""

from datetime import datetime

from fastapi import APIRouter
from msgspec import Struct
from starlette.responses import Response

from metier.errors import UsageError
from metier.runtime.chat.chats import Chat, ChatRequest, list_chats, open_chat
from metier.runtime.history.run_views import read_run_view
from metier.runtime.inbox import read_inbox
from metier.runtime.queue.detached import leave_to_workers
from metier.runtime.records.index_rows import get_shown_status
from metier.runtime.status import RunStatus
from metier.server.console.inbox_cards import WaitingCard, build_waiting_card, read_approval_card
from metier.server.console.rendering import Here, Page, PageRoute
from metier.store.contexts import ContextState
from metier.views.run_view import RunView

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MAX_TURNS = 30
"""Turns on a page. Earlier ones are in the list of runs."""
_MAX_CHATS = 50
_MAX_MESSAGE_LENGTH = 100_000


class ListedChat(Struct, frozen=True, kw_only=True):
    context_id: str
    said: str
    """The last message."""
    status: str
    turns: int
    updated_at: datetime


class ShownTurn(Struct, frozen=True, kw_only=True):
    run_id: str
    said: str
    view: RunView


@router.get("/chat")
async def list_conversations(page: Here) -> Response:
    found = await list_chats(page.state.runtime, limit=_MAX_CHATS)
    chats = [await _build_listed(page, state) for state in found]
    return await page.render("chats.html", "chat", chats=chats)


async def _build_listed(page: Page, state: ContextState) -> ListedChat:
    """Build a row from the newest run. The conversation's own state is as old as its last client."""
    newest = await page.state.runtime.store.list_runs(context_id=state.context_id, limit=1)
    return ListedChat(
        context_id=state.context_id,
        said=newest[0].task if newest else "",
        status=get_shown_status(newest[0]) if newest else state.task_state,
        turns=state.current_turn,
        updated_at=max(state.updated_at, newest[0].updated_at) if newest else state.updated_at,
    )


@router.post("/chat")
async def start_chat(page: Here) -> Response:
    """Start a conversation with its first message."""
    form = await page.read_form()
    chat = await open_chat(page.state.runtime, ChatRequest())
    return await _send(page, chat, form.get("message", ""))


@router.get("/chat/{context_id}")
async def show_chat(page: Here, context_id: str) -> Response:
    return await _render(page, context_id, "chat.html")


@router.get("/chat/{context_id}/talk")
async def show_talk(page: Here, context_id: str) -> Response:
    return await _render(page, context_id, "chat_talk.html")


@router.post("/chat/{context_id}")
async def send(page: Here, context_id: str) -> Response:
    form = await page.read_form()
    chat = await open_chat(page.state.runtime, ChatRequest(context_id=context_id))
    return await _send(page, chat, form.get("message", ""))


async def _send(page: Page, chat: Chat, message: str) -> Response:
    """Start a turn; the pool or a worker drives it. Raises `LeaseHeld` while the previous one is being answered."""
    # Browsers send every line end of a form as CRLF.
    text = message.replace("\r\n", "\n").strip()
    if not text or len(text) > _MAX_MESSAGE_LENGTH:
        raise UsageError("The message is empty or too long", hint=f"Write up to {_MAX_MESSAGE_LENGTH:,} characters")
    await chat.send(text, leave_to_workers(page.state.queue))
    page.state.nudge()
    return page.go(f"/chat/{chat.context_id}#last")


async def _render(page: Page, context_id: str, template: str) -> Response:
    runtime = page.state.runtime
    chat = await open_chat(runtime, ChatRequest(context_id=context_id))
    listed = (await chat.list_turns())[-MAX_TURNS:]
    turns = [
        ShownTurn(run_id=state.run_id, said=turn.said, view=await read_run_view(runtime, state.run_id, levels=1))
        for state, turn in listed
    ]
    open_turn = await chat.find_open_turn()
    return await page.render(
        template,
        "chat",
        context_id=context_id,
        turns=turns,
        open_run=open_turn.run_id if open_turn is not None else "",
        open_kind=open_turn.wait_kind if open_turn is not None else "",
        cards=[await read_approval_card(runtime, question) for question in await chat.find_approvals()],
        waiting_runs=await _build_waiting(page, open_turn),
        model=chat.answered_by,
        agent=chat.agent_id,
    )


async def _build_waiting(page: Page, open_turn: RunStatus | None) -> list[WaitingCard]:
    """List the turn's questions other than approvals: a question, an interrupted step, a limit."""
    if open_turn is None:
        return []
    runtime = page.state.runtime
    found = (await read_inbox(runtime)).runs
    return [build_waiting_card(run, runtime.host) for run in found if run.run_id == open_turn.run_id]
