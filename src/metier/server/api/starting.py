"""Start a run over HTTP: with limits of its own, once per idempotency key, left to the pool or to workers."""

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
    """Limits of this run, which override the workspace's settings."""

    provider: Annotated[str, Field(max_length=100, description="Who answers; `offline` needs no key.")] = ""
    profile: Annotated[
        Literal["", "permissive", "guarded", "strict"], Field(description="What happens where no rule speaks.")
    ] = ""
    max_turns: Annotated[int | None, Field(ge=1, le=100_000, description="How many turns it may take.")] = None
    max_cost_usd: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="What it may cost.")] = None


class StartRun(RunLimits):
    task: Annotated[str, Field(min_length=1, max_length=MAX_TEXT, description="What to do.")]
    agent: Annotated[str, Field(max_length=200, description="The agent, by its ID; empty takes the usual one.")] = ""
    model: Annotated[str, Field(max_length=200, description="The model, or provider/model.")] = ""
    extra_context: Annotated[str, Field(max_length=MAX_TEXT, description="Text that goes with the task.")] = ""
    mode: Annotated[Literal["live", "dry_run"], Field(description="`dry_run` only plans.")] = "live"
    output_schema: Annotated[
        dict[str, JsonValue] | None, Field(description="The JSON schema that the result must have.")
    ] = None


async def start_once(request: Request, once: Once, wanted: RunRequest, limits: RunLimits) -> Document:
    """Begin the run, or find the one that this key began before a kill."""
    state = get_state(request)
    run_id = once.make_run_id()
    runtime = use_limits(state, limits)
    try:
        wanted = replace(wanted, run_id=run_id, trace_parent=request.headers.get(HEADER, ""))
        begun = await submit(runtime, wanted, queue=state.queue)
        run_id = begun.run_id
    except RunExists:
        if not run_id:
            raise
    state.nudge()
    return row_as_json(await state.runtime.find(run_id))


def use_limits(state: ServerState, limits: RunLimits) -> Runtime:
    """The same runs, with settings of this request. Raises `ConfigError`."""
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
