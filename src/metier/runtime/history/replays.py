"""Replay of a run from its stored data, without a key, network access, processes or the run's files."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.profile import ProfilePolicy
from metier.context.tokens import TokenCounter
from metier.definitions.names import canonical_name
from metier.definitions.policy_file import read_policy_file
from metier.definitions.problems import Problem
from metier.engine.entries.entry import Entry
from metier.engine.entries.run import RunStarted
from metier.engine.entries.skill import CatalogLoaded
from metier.engine.journal import read_entries
from metier.engine.replay.recorded_store import RecordedStore
from metier.engine.replay.recording import Recording
from metier.engine.replay.replay import Replayed, replay
from metier.engine.services import Services
from metier.engine.skill_index import build_skill_index
from metier.engine.state.authority import find_authority, find_origin
from metier.providers.facts import load_facts
from metier.providers.failures import MissingKey
from metier.providers.stand_ins import UnavailableProvider
from metier.runtime.build import compose_instructions, get_model_options, get_policy_sources, list_tools, narrow
from metier.runtime.child_runs import restore_run
from metier.runtime.delegation.authority import bind
from metier.runtime.history.archive import Archive
from metier.runtime.host import Host
from metier.runtime.records.pins import (
    AGENT,
    SKILL,
    find_instructions,
    find_tools,
    get_outside,
    get_partners,
    get_policy,
    list_trusted,
    rebuild_packages,
)
from metier.runtime.runs import Runtime
from metier.runtime.workspace.agents import ResolvedAgent, read_definition_file, restore_agent
from metier.runtime.workspace.instructions import load_project
from metier.runtime.workspace.lookup import get_definition
from metier.runtime.workspace.policy import DEFINITIONS, HOST_FILE, PolicySources, build_policy, list_outside_scripts
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.trust import get_withheld
from metier.skills.package import SkillPackage
from metier.store.base import Store
from metier.store.failures import StoreDamaged
from metier.tools.base import Refusing, Tool, ToolContext, ToolInfo, ToolResult
from metier.tools.toolbox import Toolbox


class ReplayReport(Struct, frozen=True, kw_only=True):
    run_id: str
    outcome: Replayed
    changed: tuple[str, ...] = ()
    """Definitions of this workspace that differ from the run's."""

    @property
    def is_equal(self) -> bool:
        return self.outcome.divergence is None


async def replay_run(runtime: Runtime, run_id: str, *, with_current_files: bool = False) -> ReplayReport:
    """Drive a run again from its journal and compare the entries.

    The replay uses the pinned definitions, or the current ones of the workspace. Raises `BlobUnknown` if a pinned one
    is no longer stored.
    """
    entries = await read_entries(runtime.store, run_id)
    started = get_start(run_id, entries)
    report = await replay_entries(
        run_id, entries, host=runtime.host, store=runtime.store, with_current_files=with_current_files
    )
    # The definitions of another workspace say nothing about what changed since.
    if started.workspace != str(runtime.host.workspace):
        return report
    run = await restore_run(runtime.host, runtime.store, folder=runtime.folder(run_id), started=started)
    return replace(report, changed=list_changed(started, run.agent))


async def replay_entries(
    run_id: str, entries: Sequence[Entry], *, host: Host, store: Store, with_current_files: bool = False
) -> ReplayReport:
    """Replay a journal from any source, whose blobs are in `store`."""
    services = await build_replay_services(host, store, entries, with_current_files=with_current_files)
    return ReplayReport(run_id=run_id, outcome=await replay(run_id, entries, services))


async def replay_archive(archive: Archive, *, host: Host, store: Store) -> ReplayReport:
    """Replay an archived run and its descendants. Return the first report with a difference, otherwise the run's."""
    with_blobs = open_archive_store(archive, store)
    for child in archive.children:
        report = await replay_entries(child.run_id, child.entries, host=host, store=with_blobs)
        if not report.is_equal:
            return report
    return await replay_entries(archive.run_id, archive.entries, host=host, store=with_blobs)


def open_archive_store(archive: Archive, store: Store) -> RecordedStore:
    """Open a read-only view of the store that also has the blobs of an archive."""
    blobs = {digest: data for each in (archive, *archive.children) for digest, data in each.blobs.items()}
    return RecordedStore(store, Recording(()), blobs=blobs)


def get_start(run_id: str, entries: Sequence[Entry]) -> RunStarted:
    """Return the first entry. Raises `StoreDamaged` for a journal without one."""
    started = find_authority(entries)
    if started is None:
        raise StoreDamaged(f"The journal of run {run_id!r} does not say how it began", hint="It cannot be used")
    return started


def list_changed(started: RunStarted, agent: ResolvedAgent) -> tuple[str, ...]:
    """List the agent and skills whose files differ from the pinned bytes, are new, or are missing."""
    now = {
        f"{SKILL}{package.definition.name}": hashlib.sha256(package.definition.data).hexdigest()
        for package in agent.packages
    }
    then = {name: digest for name, digest in started.pins.items() if name.startswith(SKILL)}
    pinned = started.pins.get(f"{AGENT}{agent.id}")
    has_changed = pinned is not None and (agent.changed or pinned != hashlib.sha256(agent.data).hexdigest())
    skills = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return (*([f"{AGENT}{agent.id}"] if has_changed else []), *skills)


class ReplayChanges(Struct, frozen=True, kw_only=True):
    """Changes to apply in a replay, to see their effect."""

    packages: tuple[SkillPackage, ...] = ()
    """Skills that replace those of the same name."""
    base: str | None = None
    """System prompt of the workspace."""
    policy: bytes | None = None
    """Rules of the workspace."""
    skills: Mapping[str, float] = field(default_factory=dict[str, float])
    """Settings of the section `skills`."""

    def replace_packages(self, packages: Sequence[SkillPackage]) -> tuple[SkillPackage, ...]:
        named = {canonical_name(package.definition.name): package for package in self.packages}
        return tuple(named.get(canonical_name(package.definition.name), package) for package in packages)


NO_CHANGES = ReplayChanges()


async def build_replay_services(
    host: Host,
    store: Store,
    entries: Sequence[Entry],
    *,
    with_current_files: bool = False,
    changes: ReplayChanges = NO_CHANGES,
) -> Services:
    """Build the services for a replay with these changes. They can't have any effect."""
    # Without changes of the model, which the replay applies when it reaches their entries.
    started = find_origin(entries) or get_start("", entries)
    run = await restore_run(host, store, folder=host.runs, started=started)
    agent = run.agent
    host, settings = agent.host, agent.host.settings
    if with_current_files and agent.id:
        file = Path(get_definition(host.workspace, "agent", agent.id).path)
        agent = restore_agent(host, agent.id, read_definition_file(file, host.workspace), file=file)
    found = agent.packages if with_current_files else await rebuild_packages(started.pins, agent.packages, store)
    packages = changes.replace_packages(found)
    pinned = None if with_current_files else await find_instructions(started.pins, store)
    there = Toolbox(list_tools((), replace(host, workspace=Path(started.workspace)), web=agent.web))
    tools = Toolbox(_RecordedTool(info, there.find(info.name)) for info in await find_tools(started.pins, store))
    policy_file = read_policy_file(host.workspace) if with_current_files else await get_policy(started.pins, store)
    policy_file = policy_file if changes.policy is None else changes.policy
    run = replace(run, agent=agent)
    sources = await _get_policy_sources(run, packages, policy_file, store=store, with_current_files=with_current_files)
    # Rules are evaluated for the paths of the machine that the run was on.
    root = Path(started.root)
    default = ProfilePolicy(settings.runtime.profile, tools, reading=started.reading_sandbox)
    policy = build_policy(packages, tools, workspace=root, profile=default, sources=sources)
    partners = await get_partners(started.pins, store)
    instructions = pinned or compose_instructions(run, tools, partners, project=load_project(host))
    # Replies come from the recording, and a bug must not turn a replay into a paid request.
    provider = UnavailableProvider(started.provider, MissingKey("A replay calls no model"))
    return Services(
        store=store,
        provider=provider,
        counter=TokenCounter(started.provider),
        facts=load_facts(),
        policy=narrow(host, await bind(policy, run, store, tools=tools)),
        tools=tools,
        skill_index=build_skill_index(
            packages, workspace=host.workspace, problems=_problems(entries), cache_folder=host.cache
        ),
        instructions=instructions if changes.base is None else replace(instructions, base=changes.base),
        model=get_model_options(host, provider),
        runtime=settings.runtime,
        skills=settings.skills.model_copy(update=dict(changes.skills)),
        clock=host.clock,
        ids=host.ids,
        workspace=host.workspace,
        run_folder=host.runs,
        # The journal is redacted already, and redacting it with today's secrets would change the hashes of requests.
        redact=lambda text: text,
        partners=partners,
        task=run.task if run.is_planned else None,
        owner=host.owner,
    )


async def _get_policy_sources(
    run: PreparedRun, packages: Sequence[SkillPackage], policy_file: bytes, *, store: Store, with_current_files: bool
) -> PolicySources:
    """Return the scopes whose rules apply in a replay, with the trust of then or of now."""
    sources, host = replace(get_policy_sources(run, policy_file), known=None), run.agent.host
    if with_current_files:
        outside = list_outside_scripts(packages, host.workspace)
        return replace(sources, withheld=get_withheld(host, policy_file), outside=outside)
    trusted = await list_trusted(run.pins, store)

    def was_trusted(package: SkillPackage) -> bool:
        return package.definition.name in trusted

    outside = await get_outside(run.pins, store)
    return replace(sources, trusted=was_trusted, withheld=trusted & {HOST_FILE, DEFINITIONS}, outside=outside)


def _problems(entries: Sequence[Entry]) -> tuple[Problem, ...]:
    """Return as many problems as the catalog had then. Files that could not be loaded are not stored."""
    count = next((entry.problems for entry in entries if isinstance(entry, CatalogLoaded)), 0)
    return (Problem(severity="error", code="recorded", message="Recorded with the run"),) * count


class _RecordedTool:
    """A tool of the run that is never executed, because the recording has its results."""

    def __init__(self, info: ToolInfo, real: Tool | None) -> None:
        """Take the `real` tool with the run's paths, which decides about calls to reject."""
        self.info = info
        self._refusing = real if isinstance(real, Refusing) else None

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        return self._refusing.refuse(arguments) if self._refusing is not None else ""

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        del arguments, context
        return ToolResult(ok=False, error="A replay runs nothing", meta={"code": "permission_denied"})
