"""The first entry of a run: what it was started with."""

from metier.engine import entries as e
from metier.engine.model.media import keep_media
from metier.engine.services import Services
from metier.errors import UsageError
from metier.providers.options import OFFLINE
from metier.runtime.children.child_runs import build_limits
from metier.runtime.requests import RunRequest
from metier.runtime.workspace.agents import AgentInForce
from metier.runtime.workspace.hook_choice import choose_hooks
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.surroundings import describe_surroundings
from metier.telemetry.otel.trace_context import TraceParent, build_trace_id


async def build_start(
    request: RunRequest, run: PreparedRun, services: Services, *, pins: dict[str, str]
) -> e.RunStarted:
    """Raises `UsageError` for attachments that the model cannot see."""
    agent = run.agent
    if request.attachments:
        _check_sight(agent, services)
    runtime = agent.place.settings.runtime
    run_id = services.run_folder.name
    commission = request.commission
    above = TraceParent.parse(commission.trace_parent if commission else "") or TraceParent.parse(request.trace_parent)
    return e.RunStarted(
        task=request.task,
        mode=request.mode,
        agent=agent.id,
        provider=services.provider.name,
        model=agent.model.name if services.provider.name != "offline" else "offline",
        profile=agent.profile,
        sandbox=services.sandbox,
        context_id=request.context_id or run_id,
        trace_id=above.trace_id if above is not None else build_trace_id(run_id),
        trace_parent=above.render() if above is not None else "",
        workspace=str(agent.place.workspace),
        worktree=agent.place.worktree,
        parent_run_id=commission.parent_run_id if commission else "",
        limits=commission.order.limits if commission else build_limits(runtime),
        pins=pins,
        extra_context=request.extra_context,
        attachments=await keep_media(services.store, request.attachments),
        order=commission.order if commission else _order_result(request, agent),
        hooks=choose_hooks(run),
        environment=describe_surroundings(agent.place.root, services.clock.now()),
        started_at=services.clock.now().isoformat(),
    )


def _check_sight(agent: AgentInForce, services: Services) -> None:
    name = services.provider.name
    if name == OFFLINE:
        raise UsageError("The offline provider cannot see pictures or documents", hint="Choose a model: --provider")
    if not services.facts.find(name, agent.model.name).takes_images:
        raise UsageError(
            f"Model {agent.model.name!r} takes text only, and the task has a picture or a document",
            hint="Choose another model, or correct takes_images in model.facts_file",
        )


def _order_result(request: RunRequest, agent: AgentInForce) -> e.ChildRequest | None:
    """A person wants a result of a certain form: it is held against it like that of a task."""
    if request.output_schema is None:
        return None
    limits = build_limits(agent.place.settings.runtime)
    return e.ChildRequest(
        task=request.task, agent=agent.id, model=request.model, output_schema=request.output_schema, limits=limits
    )
