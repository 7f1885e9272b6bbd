"""Assembly of the services of a run: skills, tools, provider, policy and instructions."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from anyio.to_thread import run_sync
from msgspec.structs import replace

from metier.approval.profile import ProfilePolicy, ReadingLevel
from metier.context.control import CONTROL_NAMES
from metier.context.operating import Subjects, get_family
from metier.context.tokens import TokenCounter
from metier.definitions.files.quarantine import settle_abandoned
from metier.definitions.policy_file import read_policy_file
from metier.definitions.problems import Problem
from metier.definitions.project_files import Deny, ProjectFile
from metier.definitions.skills.scripts import is_capability
from metier.engine.decide import Policy, get_read_denial
from metier.engine.delegation import Partners
from metier.engine.nearby_instructions import describe_files
from metier.engine.services import Instructions, Services
from metier.engine.skill_index import SkillIndex
from metier.errors import MetierError, UsageError
from metier.events.model import ProjectInstructionsLoaded
from metier.ids import measure_ms
from metier.providers.base import Observer, Provider
from metier.providers.facts import FactBook
from metier.providers.feature_support import FeatureCache, FeatureMemory, FeatureSupport
from metier.providers.options import OFFLINE, ModelOptions
from metier.providers.registry import choose_provider, enforces_schema, get_base_url
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.confinement import build_protected_state, limit_only, open_confinement, open_reading
from metier.runtime.delegation.authority import bind, choose_partners, get_tool_bounds
from metier.runtime.delegation.worktrees import PlaceWorktrees, check_worktree
from metier.runtime.host import Host
from metier.runtime.mcp import list_known_tools, list_server_files, open_servers
from metier.runtime.model_providers import load_host_facts, open_models
from metier.runtime.notify.notify_command import list_notify_files
from metier.runtime.records.pins import find_instructions, get_outside, list_trusted, use_pinned, use_pinned_policy
from metier.runtime.workspace.instructions import NearbyFiles, list_changed_project, load_instructions, load_project
from metier.runtime.workspace.policy import (
    BUILT_IN_TOOLS,
    SCRIPT_TOOLS,
    NewDenials,
    PolicySources,
    build_policy,
    list_denied,
    list_outside_scripts,
)
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.skill_catalog import list_blocked, list_skill_notices, open_skill_index
from metier.runtime.workspace.tasks import choose_tools, list_changed_task
from metier.runtime.workspace.trust import get_withheld
from metier.skills.package import SkillPackage
from metier.store.base import Store
from metier.tools.access import AccessFile
from metier.tools.base import Tool
from metier.tools.builtin import build_builtin_tools, build_search_tools, build_shell_tools
from metier.tools.files.scope import Scope
from metier.tools.files.snapshots import WorkspaceSnapshots
from metier.tools.hook_process import HookRunner
from metier.tools.process.run import clear_scratch
from metier.tools.process.sandbox.confinement import ARTIFACTS, QUARANTINE, Confinement, list_masked
from metier.tools.scripts.active_scripts import ScriptCatalog, ScriptLimits
from metier.tools.scripts.runner import ScriptRunner, default_environments
from metier.tools.scripts.script_tools import build_script_tools
from metier.tools.shell.bash import Surroundings, choose_shell
from metier.tools.toolbox import Toolbox, list_names
from metier.tools.toolsets.loader import ToolsetReading, load_toolsets
from metier.tools.web.url import WebAccess


@asynccontextmanager
async def build_services(
    host: Host, store: Store, *, run: PreparedRun, observe: Observer | None = None
) -> AsyncGenerator[Services]:
    """Build the services of a run. A dry run opens no connection and starts no toolset."""
    settings, agent, facts = host.settings, run.agent, load_host_facts(host)
    packages, changed = await use_pinned(agent.packages, run.pins, store)
    policy = await use_pinned_policy(read_policy_file(host.workspace), run.pins, store)
    access, cleaner, (confinement, reading, run) = _open_access(host), build_host_cleaner(host), await _enclose(run)
    async with AsyncExitStack() as opened:
        toolsets = await opened.enter_async_context(_open_toolsets(packages, host, run=run, confinement=confinement))
        servers = await opened.enter_async_context(open_servers(host, store, run=run, confinement=confinement))
        skill_index = _open_skill_index(packages, run, (*toolsets.problems, *list_blocked(host, packages)))
        opened.push_async_callback((models := open_models(host, facts, skill_index, run=run)).aclose)
        own = _list_own(packages, host, run=run, confinement=confinement, reading=reading, policy_file=policy.text)
        skills = _list_callable(packages, run, store, provider=models.provider, facts=facts, confinement=confinement)
        offered = (*own, *toolsets.tools, *servers.tools, *skills)
        known, tools = _check_names(run, access, list_names(offered)), await _choose_tools(run, offered, store)
        rules = await _build_rules(run, packages, tools, policy_file=policy.text, known=known, store=store)
        guidance = await _get_instructions(run, tools, store=store, deny=(deny := partial(get_read_denial, rules)))
        yield Services(
            store=store,
            provider=models.provider,
            counter=TokenCounter(models.provider.name),
            fallbacks=models.fallbacks,
            features=_open_feature_cache(host),
            enforces_schema=enforces_schema(choose_provider(settings.model), host.environ),
            facts=facts,
            policy=rules,
            find_new_denial=NewDenials(host.workspace, policy.text, tools=tools, root=host.root).find,
            read_access=lambda: tools.resolve(access.read()),
            tools=tools,
            skill_index=skill_index,
            instructions=guidance.instructions,
            model=get_model_options(host, models.provider),
            runtime=settings.runtime,
            skills=settings.skills,
            sandbox=confinement.level,
            reading_sandbox=_name_level(reading),
            protected=build_protected_state(confinement),
            clock=host.clock,
            ids=host.ids,
            workspace=host.root,
            run_folder=run.folder,
            worktrees=PlaceWorktrees(host),
            redact=cleaner.text,
            redact_body=cleaner.value if settings.logging.debug_llm_bodies else None,
            changed=(*changed, *policy.changed, *list_changed_files(run, deny)),
            partners=guidance.partners,
            task=run.task if run.is_planned else None,
            given_results=run.given_results,
            snapshots=_open_snapshots(host, run),
            hooks=_open_hooks(host, run, confinement),
            nearby=NearbyFiles(workspace=host.root, clean=cleaner.text, is_own=host.trust.is_trusted, deny=deny),
            notices=(*servers.notices, *list_skill_notices(packages, tools), *guidance.notices),
            not_listed=servers.not_listed,
            owner=host.owner,
            observe=observe,
            buffers=host.buffers,
            seams=host.seams,
        )


async def _enclose(run: PreparedRun) -> tuple[Confinement, Confinement | None, PreparedRun]:
    """Open the sandbox and the read-only sandbox, and return the run with the level of the latter.

    A run that has started keeps its recorded level, because its policy depends on it.
    """
    confinement = await _confine(run.agent.host, run)
    reading = None if run.is_dry else await open_reading(run.agent.host, confinement)
    return confinement, reading, run if run.pins else replace(run, reading_sandbox=_name_level(reading))


def _name_level(reading: Confinement | None) -> ReadingLevel:
    return reading.level if reading is not None else "none"


def _open_skill_index(packages: Sequence[SkillPackage], run: PreparedRun, problems: Sequence[Problem]) -> SkillIndex:
    """Open the skill index; its load time includes reading the skills."""
    agent, clock = run.agent, run.agent.host.clock
    started = clock.monotonic()
    known = (*agent.problems, *problems)
    skill_index = open_skill_index(packages, agent.host, web=agent.web, problems=known, is_asking=not run.is_plan_only)
    return replace(skill_index, load_ms=round(agent.load_ms + measure_ms(clock, started), 3))


def _list_callable(
    packages: Sequence[SkillPackage],
    run: PreparedRun,
    store: Store,
    *,
    provider: Provider,
    facts: FactBook,
    confinement: Confinement,
) -> tuple[Tool, ...]:
    is_called = run.order is not None and run.order.call is not None
    if not is_called and not any(is_capability(package.definition) for package in packages):
        return ()
    # Imported here: it is a fifth of the modules of a run, and most runs have no callable skill.
    from metier.runtime.delegation.skill_calls import find_advisor, list_callable

    host = run.agent.host
    advisor = find_advisor(host, provider, facts)
    return list_callable(packages, host, store, run=run, advisor=advisor, confinement=confinement)


def list_changed_files(run: PreparedRun, deny: Deny) -> tuple[str, ...]:
    """List the pins of agent, task and project files that changed since the run started."""
    return (*run.agent.changed, *list_changed_task(run), *list_changed_project(run.agent.host, run.pins, deny=deny))


class _Guidance(NamedTuple):
    instructions: Instructions
    partners: Partners
    notices: tuple[ProjectInstructionsLoaded, ...] = ()


async def _get_instructions(run: PreparedRun, tools: Toolbox, *, store: Store, deny: Deny) -> _Guidance:
    """Return the pinned instructions, or those of the current files for a new run."""
    partners = await choose_partners(run, store)
    if (pinned := await find_instructions(run.pins, store)) is not None:
        return _Guidance(pinned, partners)
    project = () if run.is_planned else load_project(run.agent.host, deny=deny)
    instructions = compose_instructions(run, tools, partners, project=project)
    return _Guidance(instructions, partners, (describe_files(project),) if project else ())


def _open_snapshots(host: Host, run: PreparedRun) -> WorkspaceSnapshots | None:
    return None if run.is_plan_only else open_snapshots(host, run.folder)


def _open_hooks(host: Host, run: PreparedRun, confinement: Confinement) -> HookRunner | None:
    if run.is_plan_only:
        return None
    return HookRunner(workspace=host.workspace, environ=host.environ, confinement=confinement)


def open_snapshots(host: Host, folder: Path) -> WorkspaceSnapshots:
    """Open the file snapshots, which are stored in the run's folder."""
    # Without the runs: they contain the snapshots themselves, and a database that changes with every step.
    return WorkspaceSnapshots(host.root, folder / "snapshots", excluded=_inside(host.runs, host.workspace))


def _open_access(host: Host) -> AccessFile:
    """Open the access file. Raises `ConfigError` if it can't be read."""
    access = AccessFile(host.workspace)
    # Read for its errors: an invalid file must prevent the start, not interrupt the first turn.
    access.read()
    return access


def _check_names(run: PreparedRun, access: AccessFile, known: frozenset[str]) -> frozenset[str]:
    """Return the known names. Raises `ConfigError` for an unknown tool in the access file or in a new run's agent."""
    names = {*known, *BUILT_IN_TOOLS, *SCRIPT_TOOLS, *CONTROL_NAMES}
    access.check_names(names)
    # A resumed run keeps its pinned agent, whatever tools exist by now.
    if not run.pins:
        run.agent.check_tools(names)
    return known


def compose_instructions(
    run: PreparedRun, tools: Toolbox, partners: Partners, *, project: Sequence[ProjectFile]
) -> Instructions:
    """Compose the instructions of a new run. They don't depend on its task."""
    agent = run.agent
    provider = agent.host.provider.name if agent.host.provider is not None else agent.host.settings.model.provider
    subjects = Subjects(
        tools=tools.names(), has_skills=bool(agent.packages), has_partners=bool(partners.agents or partners.tasks)
    )
    family = get_family(provider, agent.model.name)
    return load_instructions(agent, run.extra_input, subjects=subjects, family=family, project=project)


async def _choose_tools(run: PreparedRun, offered: Sequence[Tool], store: Store) -> Toolbox:
    bounds = await get_tool_bounds(run, store)
    return Toolbox(tool for tool in choose_tools(run.agent, offered, run.steps) if bounds.has(tool))


async def _build_rules(
    run: PreparedRun,
    packages: Sequence[SkillPackage],
    tools: Toolbox,
    *,
    policy_file: bytes,
    known: frozenset[str],
    store: Store,
) -> Policy:
    agent, host = run.agent, run.agent.host
    sources = replace(
        get_policy_sources(run, policy_file),
        # The rules of a started run were checked when it started. A tool that is missing by now is no error.
        known=None if run.pins else known,
        withheld=await list_trusted(run.pins, store) if run.pins else get_withheld(host, policy_file),
        outside=await get_outside(run.pins, store) if run.pins else list_outside_scripts(packages, host.workspace),
    )
    rules = build_policy(
        packages,
        tools,
        workspace=host.root,
        profile=ProfilePolicy(agent.profile, tools, reading=run.reading_sandbox),
        sources=sources,
        is_partial=run.is_plan_only,
    )
    return narrow(host, await bind(rules, run, store, tools=tools))


def get_policy_sources(run: PreparedRun, policy_file: bytes) -> PolicySources:
    """Return the scopes whose rules apply to a run, with the host's rules in `policy_file`."""
    step = run.steps[-1] if run.steps else None
    return PolicySources(host=policy_file, agent=run.agent.definition, task=run.task if run.steps else None, step=step)


def _list_own(
    packages: Sequence[SkillPackage],
    host: Host,
    *,
    run: PreparedRun,
    confinement: Confinement,
    reading: Confinement | None,
    policy_file: bytes,
) -> tuple[Tool, ...]:
    masked = _list_masked(run, policy_file) if confinement.level != "none" or reading is not None else ()
    web = run.agent.web
    return list_tools(packages, host, confinement=confinement, reading=reading, web=web, masked=masked)


def _list_masked(run: PreparedRun, policy_file: bytes) -> tuple[Path, ...]:
    """List the executables of programs that the rules always deny. The sandbox hides them."""
    host = run.agent.host
    denied = list_denied(host.root, get_policy_sources(run, policy_file))
    return list_masked(denied, host.environ.get("PATH", "")) if denied else ()


async def _confine(host: Host, run: PreparedRun) -> Confinement:
    if run.is_plan_only:
        return limit_only(host.settings.sandbox)
    check_worktree(host)
    # Protected paths in the record of a killed supervisor stay unread until the record is settled.
    settle_abandoned()
    if host.sweeps.take():
        await run_sync(clear_scratch)
    confinement = await open_confinement(host)
    if confinement.level == "none":
        return confinement
    artifacts = run.folder / ARTIFACTS
    # The sandbox can only make a folder writable that exists.
    artifacts.mkdir(parents=True, exist_ok=True)
    return replace(
        confinement,
        writable=(*confinement.writable, artifacts.resolve()),
        quarantine=run.folder / QUARANTINE,
        # These files run outside of the sandbox, so a program that could change them could escape from it.
        servers=(*await run_sync(list_server_files, host), *await run_sync(list_notify_files, host)),
    )


@asynccontextmanager
async def _open_toolsets(
    packages: Sequence[SkillPackage], host: Host, *, run: PreparedRun, confinement: Confinement
) -> AsyncGenerator[ToolsetReading]:
    toolsets = await _load_toolsets(packages, host, run=run, confinement=confinement)
    try:
        yield toolsets
    finally:
        await toolsets.aclose()


async def _load_toolsets(
    packages: Sequence[SkillPackage], host: Host, *, run: PreparedRun, confinement: Confinement
) -> ToolsetReading:
    """Load the toolsets. Raises `MetierError` if one changed protected files while it was loaded."""
    if run.is_plan_only or not any(package.definition.toolsets for package in packages):
        return ToolsetReading()
    protected = build_protected_state(confinement)
    if protected is None:
        return await load_toolsets(packages, host.environ, confinement=confinement)
    # Loading a toolset runs its code, so protected files are compared before and after it.
    before = await run_sync(protected.snapshot)
    reading = await load_toolsets(packages, host.environ, confinement=confinement)
    if changes := await run_sync(protected.roll_back, before):
        await reading.aclose()
        raise MetierError(changes)
    return reading


def list_tools(
    packages: Sequence[SkillPackage],
    host: Host,
    *,
    confinement: Confinement | None = None,
    reading: Confinement | None = None,
    web: WebAccess | None = None,
    masked: tuple[Path, ...] = (),
) -> tuple[Tool, ...]:
    """List the tools that are known without running a skill's code. Tools of the host replace built-in ones.

    `confinement` is the sandbox of the programs they start, `reading` that of commands that run without approval.
    Without these, the tools are for display only. Commands can't run the `masked` programs. Scripts of skills can,
    because rules for commands don't apply to them.
    """
    enclosed = confinement or limit_only(host.settings.sandbox)
    replaced = {tool.info.name for tool in host.tools}
    shell = replace(enclosed, masked=masked)
    reading = replace(reading, masked=masked) if reading is not None else None
    built_in = (tool for tool in _builtin_tools(host, shell, reading, web=web) if tool.info.name not in replaced)
    return (*built_in, *_script_tools(packages, host, enclosed), *host.tools)


def list_all_tools(packages: Sequence[SkillPackage], host: Host, *, web: WebAccess | None = None) -> tuple[Tool, ...]:
    """List all tools for display, including those of accepted external servers."""
    return (*list_tools(packages, host, web=web), *list_known_tools(host))


def _builtin_tools(
    host: Host, confinement: Confinement, reading: Confinement | None, *, web: WebAccess | None
) -> tuple[Tool, ...]:
    """Return the built-in tools. Files that control the agent are read-only in all profiles but `permissive`.

    The runs are inaccessible in every profile, so that no agent can change its own record.
    """
    settings = host.settings
    runs = _inside(host.runs, host.workspace)
    skills = _inside(host.workspace / settings.skills.dir, host.workspace)
    # A file in the environment that Metier is installed in would run with the next `agent` command.
    installed = _inside(Path(sys.prefix), host.workspace)
    protect = settings.runtime.profile != "permissive"
    scope = Scope((host.root,), protect=protect, own_folders=(*runs, *skills, *installed), records=runs)
    shell = choose_shell(sys.platform, linux=settings.runtime.shell_linux, windows=settings.runtime.shell_windows)
    surroundings = Surroundings(scope=scope, environ=host.environ, confinement=confinement, reading=reading)
    return (
        *build_builtin_tools(scope, environ=host.environ, skip=runs, web=web),
        *build_search_tools(settings.web_search, environ=host.environ, web=web),
        *build_shell_tools(surroundings, shell=shell, options=settings.shell),
    )


def _inside(folder: Path, workspace: Path) -> tuple[str, ...]:
    """Return the path relative to the workspace; empty if it is outside or the workspace itself."""
    base, path = f"{workspace.as_posix().rstrip('/')}/", folder.as_posix()
    return (path[len(base) :],) if path.startswith(base) else ()


def _script_tools(packages: Sequence[SkillPackage], host: Host, confinement: Confinement) -> tuple[Tool, ...]:
    if not packages:
        return ()
    limits = ScriptLimits(
        timeout_seconds=host.settings.skills.script_timeout_seconds,
        max_output_bytes=host.settings.skills.max_script_output_bytes,
    )
    runner = ScriptRunner(
        environments=default_environments(host.environ, workspace=host.workspace),
        environ=host.environ,
        confinement=confinement,
    )
    return build_script_tools(ScriptCatalog(packages), runner, limits)


def _open_feature_cache(host: Host) -> FeatureSupport:
    """Open the cache of features that the provider at this address doesn't support."""
    if host.provider is not None:
        # The cache is kept by address, which such a provider does not have.
        return FeatureMemory()
    choice = choose_provider(host.settings.model)
    return FeatureCache(host.cache, choice.name, get_base_url(choice, host.environ))


def get_model_options(host: Host, provider: Provider) -> ModelOptions:
    """Return the model options. The offline provider can't answer in JSON, so it uses native tool calls."""
    options = host.settings.model
    return options.model_copy(update={"structured_output_mode": "native"}) if provider.name == OFFLINE else options


def check_budget(host: Host) -> None:
    """Raise `UsageError` for a cost limit if the price of the model is unknown: it would have no effect."""
    model = host.settings.model
    if host.settings.runtime.max_cost_usd is None or model.provider == OFFLINE or host.provider is not None:
        return
    if load_host_facts(host).get(model.provider, model.name).prices is None:
        raise UsageError(
            f"The price of model {model.name!r} is not known, so its cost cannot be limited",
            hint="Name its price in a file and the file in model.facts_file, or leave max_cost_usd out",
        )


def narrow(host: Host, policy: Policy) -> Policy:
    """Apply the additional restrictions of the host, if any."""
    return host.narrow(policy) if host.narrow is not None else policy
