"""The first entry of a run: its input, and a description of the machine and folder."""

import re
import sys
from datetime import datetime
from pathlib import Path

from metier.engine.entries.run import CALL_RULES, RunStarted
from metier.engine.entries.task import ChildRequest
from metier.engine.model.media import store_media
from metier.engine.services import Services
from metier.errors import UsageError
from metier.providers.model_names import ModelName
from metier.providers.options import OFFLINE
from metier.runtime.child_runs import build_limits
from metier.runtime.requests import RunRequest
from metier.runtime.workspace.agents import AgentInForce, resolve_agent
from metier.runtime.workspace.prepared_run import PreparedRun, choose_hooks
from metier.telemetry.otel.trace_context import TraceParent, build_trace_id

_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_GIT_BRANCH = re.compile(r"ref: refs/heads/([\w./@+#=-]{1,120})\s*")
_GIT_COMMIT = re.compile(r"[0-9a-f]{40,64}\s*")
_GIT_FOLDER = re.compile(r"gitdir: ([^\n]{1,1000})\s*")
MAX_GIT_FILE_BYTES = 2_000


def describe_surroundings(workspace: Path, now: datetime) -> str:
    """Describe the machine in a few lines that stay the same for the whole run and its replay."""
    lines = [
        f"- Date at the start of the run: {now:%Y-%m-%d} ({now:%A}, UTC)",
        f"- System: {_SYSTEMS.get(sys.platform, sys.platform)}",
        f"- Workspace folder: {workspace}",
        f"- Git: {_describe_git(workspace)}",
    ]
    return "\n".join(lines)


def _describe_git(workspace: Path) -> str:
    """Read, not asked for: a repository may name programs that git would run."""
    folder = workspace / ".git"
    if linked := _GIT_FOLDER.fullmatch(_read(folder)):
        folder = workspace / linked[1]
    head = _read(folder / "HEAD")
    if branch := _GIT_BRANCH.fullmatch(head):
        return f"branch {branch[1]}"
    return "no branch, a commit is checked out" if _GIT_COMMIT.fullmatch(head) else "not a repository"


def _read(file: Path) -> str:
    try:
        if not file.is_file():  # a pipe would be waited for
            return ""
        with file.open("rb") as stream:
            return stream.read(MAX_GIT_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


async def build_start(request: RunRequest, run: PreparedRun, services: Services, *, pins: dict[str, str]) -> RunStarted:
    """Build the first entry. Raises `UsageError` for attachments that the model can't see."""
    agent = run.agent
    if request.attachments:
        _check_sight(agent, services)
    runtime = agent.host.settings.runtime
    model = _get_model(run, services)
    run_id = services.run_folder.name
    order, trace = request.order, TraceParent.parse(request.trace_parent)
    return RunStarted(
        task=request.task,
        mode=request.mode,
        agent=agent.id,
        provider=model.provider,
        model=model.model,
        profile=agent.profile,
        sandbox=services.sandbox,
        reading_sandbox=services.reading_sandbox,
        context_id=request.context_id or run_id,
        trace_id=trace.trace_id if trace is not None else build_trace_id(run_id),
        trace_parent=trace.render() if trace is not None else "",
        workspace=str(agent.host.workspace),
        worktree=agent.host.worktree,
        parent_run_id=request.parent_run_id,
        limits=order.limits if order is not None else build_limits(runtime),
        pins=pins,
        extra_context=request.extra_context,
        attachments=await store_media(services.store, request.attachments),
        order=order or _order_result(request, agent),
        hooks=choose_hooks(run),
        environment=describe_surroundings(agent.host.root, services.clock.now()),
        started_at=services.clock.now().isoformat(),
        flags=agent.host.flags,
        call_rules=CALL_RULES,
    )


def _get_model(run: PreparedRun, services: Services) -> ModelName:
    """Return the provider and model; those of a task are its agent's, because it asks no model itself."""
    agent, order, provider = run.agent, run.order, services.provider.name
    if run.is_planned and order is not None and order.agent and agent.host.provider is None:
        agent = resolve_agent(agent.host, order.agent, model=order.model)
        provider = agent.model.provider
    return ModelName(provider, OFFLINE if provider == OFFLINE else agent.model.name)


def _check_sight(agent: AgentInForce, services: Services) -> None:
    name = services.provider.name
    if name == OFFLINE:
        raise UsageError("The offline provider cannot see pictures or documents", hint="Choose a model: --provider")
    if not services.facts.get(name, agent.model.name).takes_images:
        raise UsageError(
            f"Model {agent.model.name!r} takes text only, and the task has a picture or a document",
            hint="Choose another model, or correct takes_images in model.facts_file",
        )


def _order_result(request: RunRequest, agent: AgentInForce) -> ChildRequest | None:
    """Return the request for a result with a schema, which is checked like that of a task."""
    if request.output_schema is None:
        return None
    limits = build_limits(agent.host.settings.runtime)
    return ChildRequest(
        task=request.task, agent=agent.id, model=request.model, output_schema=request.output_schema, limits=limits
    )
