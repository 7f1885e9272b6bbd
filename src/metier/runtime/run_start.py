"""The entry by which a run belongs to this store: its start, or the adoption of a run that was started elsewhere.

An adopted run was imported, or is in a copied folder of runs. Its history is evidence, not authority: settings, rules,
profile, provider, keys and definitions are the current ones of this host, and the pins from elsewhere only narrow them.
"""

import re
import secrets
import sys
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from metier.engine.entries.limits import Limits
from metier.engine.entries.run import CALL_RULES, RunAdopted, RunStarted
from metier.engine.entries.task import ChildRequest
from metier.engine.model.media import store_media
from metier.engine.services import Services
from metier.errors import UsageError
from metier.providers.model_names import ModelName
from metier.providers.options import OFFLINE
from metier.runtime.child_runs import build_limits
from metier.runtime.delegation.authority import pin_origin
from metier.runtime.host import Host
from metier.runtime.records.pins import HOST, SETTINGS, find_instructions
from metier.runtime.requests import RunRequest
from metier.runtime.workspace.agents import ResolvedAgent, resolve_agent
from metier.runtime.workspace.instructions import ExtraInput
from metier.runtime.workspace.prepared_run import PreparedRun, choose_hooks
from metier.runtime.workspace.tasks import apply_step, get_task
from metier.store.base import Store
from metier.telemetry.tracing import TraceParent, build_trace_id

_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_GIT_BRANCH = re.compile(r"ref: refs/heads/([\w./@+#=-]{1,120})\s*")
_GIT_COMMIT = re.compile(r"[0-9a-f]{40,64}\s*")
_GIT_FOLDER = re.compile(r"gitdir: ([^\n]{1,1000})\s*")
MAX_GIT_FILE_BYTES = 2_000


def describe_environment(workspace: Path, now: datetime) -> str:
    """Describe the machine in a few lines that stay the same for the whole run and its replay."""
    # The date without a time: these lines are at the start of every request, and a change would defeat prompt caches.
    lines = [
        f"- Date at the start of the run: {now:%Y-%m-%d} ({now:%A}, UTC)",
        f"- System: {_SYSTEMS.get(sys.platform, sys.platform)}",
        f"- Workspace folder: {workspace}",
        f"- Git: {_describe_git(workspace)}",
    ]
    return "\n".join(lines)


def _describe_git(workspace: Path) -> str:
    """Read the branch from files without starting git, because a repository may configure programs that git runs."""
    folder = workspace / ".git"
    if linked := _GIT_FOLDER.fullmatch(_read(folder)):
        folder = workspace / linked[1]
    head = _read(folder / "HEAD")
    if branch := _GIT_BRANCH.fullmatch(head):
        return f"branch {branch[1]}"
    return "no branch, a commit is checked out" if _GIT_COMMIT.fullmatch(head) else "not a repository"


def _read(file: Path) -> str:
    try:
        if not file.is_file():  # reading a pipe would block
            return ""
        with file.open("rb") as stream:
            return stream.read(MAX_GIT_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


async def build_start(request: RunRequest, run: PreparedRun, services: Services, *, pins: dict[str, str]) -> RunStarted:
    """Build the first entry. Raises `UsageError` for attachments that the model can't read."""
    agent = run.agent
    if request.attachments:
        _check_takes_images(agent, services)
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
        # A run outside of a conversation is a context of its own.
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
        environment=describe_environment(agent.host.root, services.clock.now()),
        started_at=services.clock.now().isoformat(),
        flags=agent.host.flags,
        call_rules=CALL_RULES,
    )


def _get_model(run: PreparedRun, services: Services) -> ModelName:
    """Return the provider and model. A planned task calls no model, so those of its agent are recorded."""
    agent, order, provider = run.agent, run.order, services.provider.name
    if run.is_planned and order is not None and order.agent and agent.host.provider is None:
        agent = resolve_agent(agent.host, order.agent, model=order.model)
        provider = agent.model.provider
    return ModelName(provider, OFFLINE if provider == OFFLINE else agent.model.name)


def _check_takes_images(agent: ResolvedAgent, services: Services) -> None:
    name = services.provider.name
    if name == OFFLINE:
        raise UsageError("The offline provider cannot see pictures or documents", hint="Choose a model: --provider")
    if not services.facts.get(name, agent.model.name).takes_images:
        raise UsageError(
            f"Model {agent.model.name!r} takes text only, and the task has a picture or a document",
            hint="Choose another model, or correct takes_images in model.facts_file",
        )


def _order_result(request: RunRequest, agent: ResolvedAgent) -> ChildRequest | None:
    """Return a request that carries the output schema, so that the result is checked like a task's."""
    if request.output_schema is None:
        return None
    limits = build_limits(agent.host.settings.runtime)
    return ChildRequest(
        task=request.task, agent=agent.id, model=request.model, output_schema=request.output_schema, limits=limits
    )


async def adopt_run(host: Host, store: Store, *, folder: Path, started: RunStarted) -> PreparedRun:
    """Return the run with the definitions of this host. Raises `UsageError` if its agent or task is missing here."""
    return await build_foreign_run(resolve_agent(host, started.agent), store, folder=folder, started=started)


async def build_foreign_run(agent: ResolvedAgent, store: Store, *, folder: Path, started: RunStarted) -> PreparedRun:
    """Build the adopted run with an agent of this host."""
    if started.worktree is not None:
        raise UsageError(
            f"Run {folder.name!r} works in a worktree of the host that it was started on",
            hint="Continue it there, or show it with `agent runs show`",
        )
    order = started.order
    task_id = (order.task_id or order.step_of) if order is not None else ""
    run = PreparedRun(
        folder=folder,
        agent=agent,
        extra_input=await find_extra_input(started, store),
        is_dry=started.mode == "dry_run",
        host=agent.host,
        order=order,
        task=get_task(agent.host, task_id) if task_id else None,
        inherited=await pin_origin(started, store),
        is_foreign=True,
    )
    _check_step(run)
    return replace(run, agent=apply_step(run.agent, run.steps)) if run.steps else run


def build_adoption(started: RunStarted, services: Services, *, run: PreparedRun, pins: dict[str, str]) -> RunAdopted:
    """Build the entry that makes the run one of this store."""
    agent, provider = run.agent, services.provider.name
    return RunAdopted(
        provider=provider,
        model=agent.model.name if provider != OFFLINE else OFFLINE,
        profile=agent.profile,
        sandbox=services.sandbox,
        reading_sandbox=services.reading_sandbox,
        workspace=str(agent.host.workspace),
        limits=narrow_limits(build_limits(agent.host.settings.runtime), started.limits),
        pins=pins,
        hooks=choose_hooks(run),
        # Approval IDs of an adopted run contain this number, so that a copied database can't hold valid answers.
        nonce=secrets.token_hex(8),
        tells_begun=True,
    )


def narrow_limits(own: Limits, brought: Limits) -> Limits:
    """Return the smaller of both limits, because the journal of an imported run can't be trusted with a budget."""
    costs = [limits.max_cost_usd for limits in (own, brought) if limits.max_cost_usd is not None]
    return replace(
        own,
        max_turns=min(own.max_turns, brought.max_turns),
        max_cost_usd=min(costs, default=None),
        max_repeated_calls=min(own.max_repeated_calls, brought.max_repeated_calls),
        max_delegation_depth=min(own.max_delegation_depth, brought.max_delegation_depth),
        delegation_share=min(own.delegation_share, brought.delegation_share),
        max_children_per_call=min(own.max_children_per_call, brought.max_children_per_call),
    )


def check_inherited(request: RunRequest, parent: RunStarted | None) -> RunRequest:
    """Drop settings and pins from the request of a child that its parent did not give it."""
    # The request may come from an imported journal, so everything that grants something is taken from the parent.
    request = replace(request, parent_worktree=parent.worktree if parent is not None else None)
    given = (parent.pins.get(HOST) or parent.pins.get(SETTINGS, "")) if parent is not None else ""
    if request.settings_digest == given and (parent is not None or not request.inherited_pins):
        return request
    return replace(request, settings_digest="", inherited_pins={})


async def find_extra_input(started: RunStarted, store: Store) -> ExtraInput | None:
    """Return the run's extra input, if any."""
    instructions = await find_instructions(started.pins, store)
    if instructions is None:
        return None
    return ExtraInput(
        facts=instructions.facts,
        summary=instructions.summary,
        conversation=instructions.conversation,
        step=instructions.step,
    )


def _check_step(run: PreparedRun) -> None:
    wanted = run.order.step_file if run.order is not None else ""
    if run.task is not None and wanted and all(step.file.name != wanted for step in run.task.steps):
        raise UsageError(
            f"Task {run.task.id!r} has no step {wanted!r} here",
            hint="The run was started elsewhere, so it needs the same task in this workspace",
        )
