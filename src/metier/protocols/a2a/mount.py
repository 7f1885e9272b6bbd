"""A2A on the server: agent cards, JSON-RPC and REST, behind the checks that every request passes."""

import hashlib
import json
from email.utils import format_datetime
from typing import override

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.utils.errors import InvalidParamsError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from metier.errors import MetierError, UsageError
from metier.protocols.a2a.caller import Caller
from metier.protocols.a2a.card import REST, RPC, build_card
from metier.protocols.a2a.handler import CALLER, MountingServer, RunTasks
from metier.runtime.workspace.lookup import get_definition
from metier.telemetry.tracing import HEADER

CARD = "/.well-known/agent-card.json"
# The protocol's test kit requires headers for caches. Private, because extended cards depend on the caller.
_CACHE = "private, max-age=60"


def mount(app: Starlette, state: MountingServer) -> None:
    """Mount the routes. The default agent's card is public; other cards and all methods need a token."""
    state.access.public.add(CARD)
    contexts = _Contexts(state)
    tasks = RunTasks(state)
    # Version 0.3 has other method names (`message/send`) and states; the dispatcher translates them.
    rpc = JsonRpcDispatcher(request_handler=tasks, context_builder=contexts, enable_v0_3_compat=True)
    routes: list[BaseRoute] = [Route(CARD, _Cards(state, is_public=True).serve)]
    for base in ("/a2a", "/a2a/{agent:path}"):
        routes += [
            Route(f"{base}{CARD}", _Cards(state, is_public=False).serve),
            # Some clients append a slash to the address of an interface.
            *(Route(f"{base}/{RPC}{end}", rpc.handle_requests, methods=["POST"]) for end in ("", "/")),
            *(
                route
                for route in create_rest_routes(tasks, contexts, path_prefix=f"{base}/{REST}")
                if isinstance(route, Route)
            ),
        ]
    app.router.routes.extend(routes)


class _Contexts(ServerCallContextBuilder):
    """Builds the call context from the user that the server authenticated."""

    def __init__(self, state: MountingServer) -> None:
        self._state = state

    @override
    def build(self, request: Request) -> ServerCallContext:
        try:
            caller = _get_caller(request, self._state)
        except UsageError as error:
            raise InvalidParamsError(message=error.message) from error
        # The token has done its work. Whatever the SDK does with its context, it cannot leak it.
        headers = {name: value for name, value in request.headers.items() if name != "authorization"}
        return ServerCallContext(state={"headers": headers, CALLER: caller})


class _Cards:
    def __init__(self, state: MountingServer, *, is_public: bool) -> None:
        self._state = state
        self._is_public = is_public

    async def serve(self, request: Request) -> Response:
        try:
            caller = _get_caller(request, self._state)
            card = agent_card_to_dict(build_card(self._state.host, caller, is_extended=not self._is_public))
        except MetierError as error:
            return JSONResponse({"detail": error.message}, status_code=404)
        # Sorted, so that the tag depends on nothing but the content.
        data = json.dumps(card, sort_keys=True).encode()
        headers = {
            "etag": f'"{hashlib.sha256(data).hexdigest()[:32]}"',
            "cache-control": _CACHE,
            "last-modified": format_datetime(self._state.host.clock.now(), usegmt=True),
        }
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return JSONResponse(card, headers=headers)


def _get_caller(request: Request, state: MountingServer) -> Caller:
    """Return the caller. Raises `UsageError` if the agent doesn't exist."""
    agent = str(request.path_params.get("agent", ""))
    if agent:
        agent = get_definition(state.host.workspace, "agent", agent).id
    user = getattr(request.state, "user", None)
    return Caller(
        user=str(getattr(user, "name", "")),
        agent=agent,
        trace_parent=request.headers.get(HEADER, ""),
        # The host was checked against the list of the server's own names.
        base_url=f"{request.url.scheme}://{request.headers.get('host', '')}{state.base_path}",
    )
