"""The methods of the Agent Client Protocol over the conversations of a workspace. Loaded after the first answer."""

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from msgspec import Struct

from metier.definitions.names import Profile
from metier.errors import MetierError, UsageError
from metier.protocols.acp.connection import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Connection,
    Params,
    Refusal,
)
from metier.protocols.acp.session import Session, read_prompt
from metier.runtime.chat.chats import ChatRequest, list_chats, open_chat
from metier.runtime.chat.conversations import read_conversation
from metier.runtime.opened_host import open_host
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins

logger = logging.getLogger("metier.protocols")

MAX_SESSIONS = 50
MAX_LISTED = 50
_MAX_TITLE_LENGTH = 80


class OpenWorkspace(Struct, frozen=True, kw_only=True):
    runtime: Runtime
    mode: Profile
    """The profile of a new session. Without one in the settings it is `guarded`: a user is there to be asked."""


class EditorSessions:
    """The sessions of one editor. Each belongs to a folder that the editor names."""

    def __init__(self, connection: Connection, capabilities: Params, config: Path | None) -> None:
        self._connection = connection
        self._config = config
        self._capabilities = capabilities
        self._workspaces: dict[Path, OpenWorkspace] = {}
        self._sessions: dict[str, Session] = {}
        self._stack = AsyncExitStack()
        self._opening = anyio.Lock()
        self._methods: dict[str, Callable[[Params], Awaitable[Params]]] = {
            "session/new": self._create,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/prompt": self._prompt,
            "session/cancel": self._cancel,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_option,
        }

    async def handle(self, method: str, params: Params) -> Params:
        """Handle a method. Raises `Refusal` for every failure."""
        run = self._methods.get(method)
        if run is None:
            raise Refusal(METHOD_NOT_FOUND, f"There is no method {method[:100]!r}")
        try:
            return await run(params)
        except UsageError as error:
            raise Refusal(INVALID_PARAMS, error.sentence) from error
        except MetierError as error:
            raise Refusal(INTERNAL_ERROR, error.sentence) from error

    async def close(self) -> None:
        """Pause the current turns, so that they can be resumed from the store, then close the stores."""
        for session in self._sessions.values():
            # All are canceled before the first is awaited, so that they stop at the same time.
            session.cancel()
        for session in self._sessions.values():
            await session.wait_idle()
        await self._stack.aclose()

    async def _create(self, params: Params) -> Params:
        session = await self._open(params, "")
        return {"sessionId": session.id, **self._describe(session)}

    async def _load(self, params: Params) -> Params:
        session = await self._open(params, _get_text(params, "sessionId"))
        # The protocol wants the whole conversation to be sent before the reply to `session/load`.
        await session.replay()
        # After the reply: questions to the editor must belong to a session that it knows.
        self._connection.spawn(lambda: self._continue_turn(session))
        return self._describe(session)

    # Unlike `session/load`, this method must not send the conversation again: the editor still shows it.
    async def _resume(self, params: Params) -> Params:
        session = await self._open(params, _get_text(params, "sessionId"))
        self._connection.spawn(lambda: self._continue_turn(session))
        return self._describe(session)

    async def _continue_turn(self, session: Session) -> None:
        try:
            await session.resume()
        except MetierError as error:
            logger.warning("session %s: %s", session.id, error.sentence)

    def _describe(self, session: Session) -> Params:
        session.send_commands()
        return {"modes": session.describe_modes(), "configOptions": session.list_options()}

    async def _list(self, params: Params) -> Params:
        """List the conversations of a folder, most recently used first."""
        folder = _read_folder(params) if params.get("cwd") else Path.cwd()
        runtime = (await self._open_workspace(folder)).runtime
        listed: list[Params] = []
        for state in await list_chats(runtime, limit=MAX_LISTED):
            rows = await runtime.store.list_runs(context_id=state.context_id, limit=1)
            title = " ".join(rows[0].task.split())[:_MAX_TITLE_LENGTH] if rows else ""
            updated = {"updatedAt": rows[0].updated_at.isoformat()} if rows else {}
            listed.append({"sessionId": state.context_id, "cwd": str(folder), "title": title or None, **updated})
        return {"sessions": listed}

    async def _close(self, params: Params) -> Params:
        session = self._find(params)
        session.cancel()
        await session.wait_idle()
        del self._sessions[session.id]
        return {}

    async def _prompt(self, params: Params) -> Params:
        return await self._find(params).prompt(read_prompt(params.get("prompt")))

    async def _cancel(self, params: Params) -> Params:
        self._find(params).cancel()
        return {}

    async def _set_mode(self, params: Params) -> Params:
        self._find(params).set_mode(_get_text(params, "modeId"))
        return {}

    async def _set_option(self, params: Params) -> Params:
        session = self._find(params)
        await session.set_option(_get_text(params, "configId"), _get_text(params, "value"))
        return {"configOptions": session.list_options()}

    def _find(self, params: Params) -> Session:
        session = self._sessions.get(_get_text(params, "sessionId"))
        if session is None:
            raise Refusal(INVALID_PARAMS, "Unknown session; load it first")
        return session

    async def _open(self, params: Params, session_id: str) -> Session:
        """Open a session, or create one if there is no ID. Raises `Refusal` if the session doesn't exist."""
        folder = _read_folder(params)
        if session_id in self._sessions and self._sessions[session_id].workspace == folder:
            return self._sessions[session_id]
        if len(self._sessions) >= MAX_SESSIONS:
            raise Refusal(INVALID_PARAMS, f"{MAX_SESSIONS} sessions are open; close one first")
        opened = await self._open_workspace(folder)
        if session_id:
            conversation = await read_conversation(opened.runtime.store, session_id)
            if not conversation.state.version and not conversation.turns:
                raise Refusal(INVALID_PARAMS, "Unknown session in this folder")
        chat = await open_chat(opened.runtime, ChatRequest(context_id=session_id))
        session = Session(self._connection, chat, workspace=folder, capabilities=self._capabilities, mode=opened.mode)
        self._sessions[session.id] = session
        return session

    async def _open_workspace(self, folder: Path) -> OpenWorkspace:
        # Two requests may open a folder at the same time, and both must get the same runtime.
        async with self._opening:
            if folder not in self._workspaces:
                opened = open_host(folder, environ=os.environ, home=Path.home(), flags=None, config=self._config)
                for problem in opened.warnings:
                    logger.warning(problem.render())
                place = self._stack.enter_context(using_plugins(opened.host, report=logger.warning))
                runtime = await self._stack.enter_async_context(open_runtime(place))
                is_default = opened.loaded.origins["runtime.profile"].kind == "default"
                mode: Profile = "guarded" if is_default else place.settings.runtime.profile
                self._workspaces[folder] = OpenWorkspace(runtime=runtime, mode=mode)
            return self._workspaces[folder]


def _read_folder(params: Params) -> Path:
    folder = Path(_get_text(params, "cwd"))
    if not folder.is_absolute() or not folder.is_dir():
        raise Refusal(INVALID_PARAMS, "cwd is not the absolute path of a folder")
    return folder.resolve()


def _get_text(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or len(value) > 4096 or "\0" in value:
        raise Refusal(INVALID_PARAMS, f"{name} must be a text")
    return value
