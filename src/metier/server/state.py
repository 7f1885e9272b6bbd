"""Shared state of the routes of one server process. Typed, created once, returned by `get_state`."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from msgspec.structs import replace

from metier.runtime.host import Host
from metier.runtime.queue.pool import RunPool
from metier.runtime.runs import Runtime
from metier.server.feed import Feed
from metier.server.metrics import ServerMetrics
from metier.server.problems import HttpProblem
from metier.server.security.guard import Access
from metier.server.security.users import LoginCodes, User
from metier.server.server_config import ServerConfig
from metier.settings.sections import ServerOptions
from metier.telemetry.redaction import Redactor

type Lifespan = Callable[[], AbstractAsyncContextManager[None]]
"""A context that is entered while the server serves."""


@dataclass(slots=True, kw_only=True)
class ServerState:
    host: Host
    config: ServerConfig
    access: Access
    codes: LoginCodes
    redactor: Redactor
    """Takes the secrets of the host out of what is sent."""
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    _runtime: Runtime | None = field(default=None, repr=False)
    _pool: RunPool | None = field(default=None, repr=False)
    _feed: Feed | None = field(default=None, repr=False)

    @property
    def options(self) -> ServerOptions:
        return self.host.settings.server

    @property
    def runtime(self) -> Runtime:
        """The runs of the workspace: open while the application serves."""
        assert self._runtime is not None, "the application has not started"
        return self._runtime

    @property
    def pool(self) -> RunPool | None:
        """Drives runs in this process; None where they are left to workers."""
        return self._pool

    @property
    def feed(self) -> Feed:
        """Events on their way to watchers."""
        assert self._feed is not None, "the application has not started"
        return self._feed

    @property
    def base_path(self) -> str:
        """Return the prefix of links."""
        return self.options.root_path

    @property
    def queue(self) -> str:
        """The queue that runs of this server go to."""
        return self.host.settings.worker.queue

    def begin(self, runtime: Runtime, pool: RunPool | None, feed: Feed) -> None:
        self._runtime, self._pool, self._feed = runtime, pool, feed
        self.host = replace(self.host, clients=runtime.host.clients)

    def nudge(self) -> None:
        """A run was put into the queue, or can continue."""
        if self._pool is not None:
            self._pool.nudge()


def get_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


def get_user(request: Request) -> User:
    """The user of the request. Raises `HttpProblem` where a public path has none."""
    user: User | None = request.state.user
    if user is None:
        raise HttpProblem(401, "token_missing", "The request carries no token of this server")
    return user


def get_nonce(request: Request) -> str:
    """Return the nonce for `script` and `style` elements of the page."""
    nonce: str = request.state.nonce
    return nonce


def get_csrf_token(request: Request) -> str:
    """For the hidden field `csrf_token` of forms, or the header `X-CSRF-Token` of scripts."""
    user: User | None = request.state.user
    return get_state(request).access.sessions.csrf_token(user) if user is not None else ""


type State = Annotated[ServerState, Depends(get_state)]
type CurrentUser = Annotated[User, Depends(get_user)]
type Nonce = Annotated[str, Depends(get_nonce)]
type CsrfToken = Annotated[str, Depends(get_csrf_token)]
