"""Starting a run over HTTP: with its own limits, once per idempotency key. The pool or a worker drives it."""

from typing import Annotated, Literal

from fastapi import Request
from msgspec.structs import replace
from pydantic import Field, JsonValue

from metier.runtime.opened_host import open_host
from metier.runtime.queue.detached import submit
from metier.runtime.records.index_rows import row_as_json
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.server.api.bodies import Body
from metier.server.idempotency import Document, Once
from metier.server.state import ServerState, get_state
from metier.store.failures import RunExists
from metier.telemetry.otel.trace_context import HEADER

MAX_TEXT = 500_000


class RunLimits(Body):
    """Limits of a run. They override the workspace's settings."""

    provider: Annotated[str, Field(max_length=100, description="Model provider; `offline` needs no key.")] = ""
    profile: Annotated[
        Literal["", "permissive", "guarded", "strict"], Field(description="Default decision when no rule matches.")
    ] = ""
    max_turns: Annotated[int | None, Field(ge=1, le=100_000, description="Maximum number of turns.")] = None
    max_cost_usd: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Maximum cost.")] = None


class StartRun(RunLimits):
    task: Annotated[str, Field(min_length=1, max_length=MAX_TEXT, description="The task in words.")]
    agent: Annotated[str, Field(max_length=200, description="The agent's ID; empty selects the default agent.")] = ""
    model: Annotated[str, Field(max_length=200, description="The model, or provider/model.")] = ""
    extra_context: Annotated[str, Field(max_length=MAX_TEXT, description="Additional context for the task.")] = ""
    mode: Annotated[Literal["live", "dry_run"], Field(description="`dry_run` only plans.")] = "live"
    output_schema: Annotated[dict[str, JsonValue] | None, Field(description="JSON Schema of the result.")] = None


async def start_once(request: Request, once: Once, wanted: RunRequest, limits: RunLimits) -> Document:
    """Start the run, or return the one that an earlier request with this key started."""
    state = get_state(request)
    run_id = once.make_run_id()
    runtime = use_limits(state, limits)
    try:
        wanted = replace(wanted, run_id=run_id, trace_parent=request.headers.get(HEADER, ""))
        started = await submit(runtime, wanted, queue=state.queue)
        run_id = started.run_id
    except RunExists:
        if not run_id:
            raise
    state.nudge()
    return row_as_json(await state.runtime.find(run_id))


def use_limits(state: ServerState, limits: RunLimits) -> Runtime:
    """Return the runtime with the limits of this request. Raises `ConfigError`."""
    flags = {
        "model.provider": limits.provider,
        "runtime.profile": limits.profile,
        "runtime.max_turns": limits.max_turns,
        "runtime.max_cost_usd": limits.max_cost_usd,
    }
    given = {key: str(value) for key, value in flags.items() if value not in ("", None)}
    if not given:
        return state.runtime
    host, config = state.runtime.host, state.config
    opened = open_host(
        config.folder,
        environ=config.environ,
        home=config.home,
        flags={**config.flags, **given},
        config=config.settings_file,
    )
    return Runtime(replace(host, settings=opened.host.settings), state.runtime.store)
