"""The state that all routes of a server process share, and the dependencies through which they get it."""

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
from metier.server.guard import Access
from metier.server.metrics import ServerMetrics
from metier.server.problems import HttpProblem
from metier.server.server_config import ServerConfig
from metier.server.users import LoginCodes, User
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
    """Removes the host's secrets from responses."""
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    _runtime: Runtime | None = field(default=None, repr=False)
    pool: RunPool | None = field(default=None, repr=False)
    """Drives runs in this process; None if workers drive them."""
    _feed: Feed | None = field(default=None, repr=False)

    @property
    def options(self) -> ServerOptions:
        return self.host.settings.server

    @property
    def runtime(self) -> Runtime:
        """Return the workspace's runtime, which is open while the application serves."""
        assert self._runtime is not None, "the application has not started"
        return self._runtime

    @property
    def feed(self) -> Feed:
        """Return the feed of event streams."""
        assert self._feed is not None, "the application has not started"
        return self._feed

    @property
    def base_path(self) -> str:
        """Return the path prefix of links."""
        return self.options.root_path

    @property
    def queue(self) -> str:
        """Return the queue for runs that this server starts."""
        return self.host.settings.worker.queue

    def open(self, runtime: Runtime, pool: RunPool | None, feed: Feed) -> None:
        self._runtime, self.pool, self._feed = runtime, pool, feed
        self.host = replace(self.host, clients=runtime.host.clients)

    def nudge(self) -> None:
        """Tell the pool that a run was queued or can continue."""
        if self.pool is not None:
            self.pool.nudge()


def get_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


def get_user(request: Request) -> User:
    """Return the user of the request. Raises `HttpProblem` if no user is signed in, on a public path."""
    user: User | None = request.state.user
    if user is None:
        raise HttpProblem(401, "token_missing", "The request has no token")
    return user


def get_nonce(request: Request) -> str:
    """Return the page's nonce for `script` and `style` elements."""
    nonce: str = request.state.nonce
    return nonce


def get_csrf_token(request: Request) -> str:
    """Return the token for the field `csrf_token` of forms or the header `X-CSRF-Token` of scripts."""
    user: User | None = request.state.user
    return get_state(request).access.sessions.csrf_token(user) if user is not None else ""


type State = Annotated[ServerState, Depends(get_state)]
type CurrentUser = Annotated[User, Depends(get_user)]
