"""What is wanted of a new run."""

from dataclasses import replace
from typing import Literal

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.runtime.children.child_runs import ChildRunStart
from metier.runtime.host import Host
from metier.runtime.workspace.instructions import Said
from metier.telemetry.otel.trace_context import VARIABLE
from metier.tools.base import Media


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Everything that a run is started with, beside the settings. Its first entry holds what came of it."""

    task: str
    mode: Literal["live", "dry_run"] = "live"
    extra_context: str = ""
    agent: str = ""
    """The ID of the agent; empty takes the one of the settings, else the built-in one."""
    model: str = ""
    """Asked for instead of the agent's; it must be one that the agent may use."""
    commission: ChildRunStart | None = None
    """What another run or a task definition orders; its agent counts, not the one of the settings."""
    said: Said | None = None
    """The conversation before it, and the step of a task that it carries out."""
    context_id: str = ""
    """The conversation it belongs to; empty for a run that is its own."""
    run_id: str = ""
    """The id of the run where it follows from what asks for it; starting it twice raises `RunExists`."""
    trace_parent: str = ""
    """The W3C `traceparent` of the request that asks for the run; anything else is ignored."""
    attachments: tuple[Media, ...] = ()
    """Pictures and documents that the model sees with the task; see `runtime.attachments`."""
    output_schema: dict[str, JsonValue] | None = None
    """The JSON schema that its result must have; what a commission orders has its own."""


def order_run(commission: ChildRunStart) -> RunRequest:
    """What is wanted of a run that another one orders."""
    order = commission.order
    return RunRequest(
        task=order.task, agent=order.agent, model=order.model, mode=commission.mode, commission=commission
    )


def take_trace(request: RunRequest, place: Host) -> RunRequest:
    """The same as part of the trace that a command was started in, where its environment names one."""
    return replace(request, trace_parent=place.environ.get(VARIABLE, ""))
