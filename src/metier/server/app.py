"""The application: API, console and protocols over one runtime, behind one guard."""

import importlib
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from msgspec import Struct
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.responses import Response

from metier.errors import MetierError, StoreError, unwrapped
from metier.events.record import EventRecord
from metier.runtime.cleaning import list_host_secrets
from metier.runtime.history.spending import record_old_runs
from metier.runtime.host import Host
from metier.runtime.queue.pool import Job, RunPool
from metier.runtime.runs import open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.server import decision_pages, login
from metier.server.api import routes
from metier.server.console import pages
from metier.server.console.rendering import render_error
from metier.server.feed import Feed
from metier.server.guard import Access, Guard, build_access_limits
from metier.server.hosts import build_allowed
from metier.server.idempotency import delete_old_keys
from metier.server.metrics import MetricsMiddleware, ServerMetrics
from metier.server.plain_page import is_page_request, render_problem_page
from metier.server.problems import HttpProblem, describe_problem, render_problem
from metier.server.server_config import ServerConfig
from metier.server.state import Lifespan, ServerState, get_state
from metier.server.users import PROXY_SECRET_VARIABLE, LoginCodes, Sessions, build_proxy_users, build_users
from metier.telemetry.redaction import build_redactor
from metier.version import __version__

logger = logging.getLogger("metier.server")

_PROTOCOLS = {"a2a": "metier.protocols.a2a.mount", "mcp": "metier.protocols.mcp.server"}
"""Modules with `mount`, by the package of the extra that they need."""

DESCRIPTION = (
    "Runs of one workspace: start, follow, answer, decide, cancel, export. Errors are RFC 9457 problems with the codes "
    "and hints of the command line. Every POST takes an `Idempotency-Key`."
)


def create_app(config: ServerConfig) -> FastAPI:
    """Build the application of a server process. Its runtime opens on startup. Raises `UsageError`, `ConfigError`."""
    host = config.open().host
    state = build_state(config, host)
    app = FastAPI(
        title="Metier",
        version=__version__,
        description=DESCRIPTION,
        openapi_url="/api/openapi.json",
        # FastAPI's own documentation pages load scripts from a CDN, which the content security policy blocks.
        docs_url=None,
        redoc_url=None,
        # The name of the function, not its path: generated clients keep their method names when a path changes.
        generate_unique_id_function=lambda route: route.name,
    )
    routes.complete_document(app, cookie=state.access.cookie)
    app.state.server = state
    # If two routes match a path, the first one answers.
    routes.mount(app, state)
    login.mount(app, state)
    decision_pages.mount(app, state)
    lifespans = [pages.mount(app, state)]
    for package, name in _PROTOCOLS.items():
        if find_spec(package) is None:
            continue
        lifespan: Lifespan | None = importlib.import_module(name).mount(app, state)
        if lifespan is not None:
            lifespans.append(lifespan)
    # Starlette does not run the lifespans of mounted applications, so this one enters them.
    app.router.lifespan_context = lambda _app: _serving(state, lifespans)
    app.add_exception_handler(MetierError, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(Exception, _answer_unexpected)
    # The one added last is outermost: rejected requests count in the metrics too.
    app.add_middleware(Guard, access=state.access)
    app.add_middleware(MetricsMiddleware, metrics=state.metrics)
    return app


def build_state(config: ServerConfig, host: Host) -> ServerState:
    options = host.settings.server
    users = build_users(token=config.token, owner=config.owner, entries=options.users)
    requests, failures = build_access_limits(options.requests_per_minute, host.clock)
    # As on the command line, fields named like `token` are not redacted: some responses contain one for the caller.
    redactor = build_redactor(values=list_host_secrets(host), generic_names=False, random_words=False)
    access = Access(
        users=users,
        sessions=Sessions(key=config.key, users=users, lifetime=timedelta(hours=options.session_hours)),
        allowed_hosts=build_allowed(host=options.host, port=config.port, named=options.allowed_hosts),
        cookie=f"agent_session_{config.port}",
        max_body_bytes=options.max_body_bytes,
        root_path=options.root_path,
        proxy=build_proxy_users(config.environ.get(PROXY_SECRET_VARIABLE, "").strip(), options.proxy_roles),
        requests=requests,
        failures=failures,
        redactor=redactor,
        clock=host.clock,
    )
    return ServerState(host=host, config=config, access=access, codes=LoginCodes(config.private), redactor=redactor)


@asynccontextmanager
async def _serving(state: ServerState, lifespans: Sequence[Lifespan]) -> AsyncGenerator[None]:
    """Open the runtime and drive runs until the server stops. Then release them, so that another process continues."""
    server_sink = _ServerSink(state.metrics)
    with unwrapped(), using_plugins(state.host, report=logger.warning) as extended:
        host = replace(extended, sinks=(*extended.sinks, server_sink))
        async with open_runtime(host) as runtime, anyio.create_task_group() as followers:
            slots = state.options.concurrency
            pool = RunPool(Job(host=host, report=logger.info), runtime, slots) if slots else None
            server_sink.feed = feed = Feed(runtime, followers, most=state.options.max_watchers)
            state.open(runtime, pool, feed)
            followers.start_soon(_delete_old_keys, state)
            followers.start_soon(_count_old_runs, state)
            async with AsyncExitStack() as stack:
                for lifespan in lifespans:
                    await stack.enter_async_context(lifespan())
                # Innermost, so that the pool releases its runs before the protocols and the runtime close.
                async with anyio.create_task_group() as drivers:
                    if pool is not None:
                        drivers.start_soon(pool.work)
                    yield
                    # Streams first: open ones would keep the server from stopping until the grace period ends.
                    feed.stop()
                    if pool is not None:
                        pool.leave("the server stops")
            followers.cancel_scope.cancel()


async def _delete_old_keys(state: ServerState) -> None:
    while True:
        with suppress(StoreError):
            # If the store is unavailable, the next round deletes the same keys.
            await delete_old_keys(state)
        await anyio.sleep(3600)


async def _count_old_runs(state: ServerState) -> None:
    """Add runs of earlier versions to the totals of the cost page. It can take long, so the server already serves."""
    with suppress(StoreError):
        await record_old_runs(state.runtime)


class _ServerSink(Struct):
    """Passes events of runs that this process drives to metrics and feed.

    The runtime needs the sink before the feed exists, and the feed needs the runtime.
    """

    metrics: ServerMetrics
    feed: Feed | None = None

    def write(self, record: EventRecord) -> None:
        self.metrics.count_event(record)
        if self.feed is not None:
            self.feed.write(record)

    def close(self) -> None:
        return None


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answer errors of the framework: an unknown path or method."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed", 413: "body_too_long"}.get(
        error.status_code, f"http_{error.status_code}"
    )
    path = request.url.path
    said = f"There is nothing at {path[:200]!r}" if error.status_code == 404 else str(error.detail)
    return await _answer(request, HttpProblem(error.status_code, code, said), headers=dict(error.headers or {}))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    problem = HttpProblem(422, "request_invalid", "; ".join(problems)[:2000], hint="/api/openapi.json has the schema")
    return await _answer(request, problem)


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    logger.error("unexpected failure of %s %s", request.method, request.url.path, exc_info=error)
    # Only the type: the message of an unexpected error can quote anything.
    problem = HttpProblem(
        500, "unexpected", f"Unexpected {type(error).__name__}", hint="The log of the server has the details"
    )
    document = describe_problem(problem, get_state(request).redactor)
    if not is_page_request(request.url.path, request.headers.get("accept", "")):
        return render_problem(document)
    # This response bypasses the guard, which adds the policy to all others.
    policy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'none'; frame-ancestors 'none'"
    headers = {"content-security-policy": policy}
    return render_problem_page(document, nonce="", base=get_state(request).base_path, headers=headers)


async def _answer(request: Request, error: Exception, *, headers: dict[str, str] | None = None) -> Response:
    """Answer a signed-in user with a page and a program with a problem document."""
    assert isinstance(error, MetierError)
    state = get_state(request)
    problem = describe_problem(error, state.redactor)
    has_page = request.state.user is not None and is_page_request(request.url.path, request.headers.get("accept", ""))
    return await render_error(request, problem) if has_page else render_problem(problem, headers=headers)
