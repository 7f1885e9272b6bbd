"""Resolved agents: an `AGENT.md` with the skills, tasks, model and profile that follow from it.

Without a definition, a run has the built-in agent: everything in the workspace, with the settings of the workspace.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from metier.definitions.agent import AgentDefinition, parse_agent
from metier.definitions.files.contained_path import read_contained
from metier.definitions.names import PROFILES, Profile, canonical_name, fold_id
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.references import INHERIT, read_names, resolve_list
from metier.definitions.skills.skill_names import is_called
from metier.definitions.text.front_matter import MAX_FILE_BYTES, parse_document
from metier.errors import ConfigError, UsageError
from metier.ids import measure_ms
from metier.providers.model_names import ModelName, check_fallbacks, is_allowed, parse_model_name
from metier.providers.options import OFFLINE, ModelOptions
from metier.runtime.host import Host
from metier.runtime.workspace.lookup import describe_unknown, get_definition, list_definitions, list_ids
from metier.runtime.workspace.skill_catalog import (
    ActiveSkills,
    activate_named,
    get_all_skills,
    get_skills,
    leave_out_incomplete,
    list_unread,
)
from metier.skills.activation import OPT_IN, activate, describe_broken
from metier.skills.package import SkillPackage
from metier.tools.base import Tool
from metier.tools.toolbox import Toolbox
from metier.tools.web.url import WebAccess

BUILT_IN = ""
"""ID of the built-in agent, which has no file."""
BUILT_IN_NAME = "built-in"
"""Display name of the built-in agent."""
SUMMARIZER = "built-in:summary"
"""Agent of the runs that summarize a chat. They belong to its context but are not turns."""


class ResolvedAgent(Struct, frozen=True, kw_only=True):
    """The agent of a run, with everything that follows from its definition."""

    id: str = BUILT_IN
    host: Host
    """The host with this agent's settings: model, decoding, profile."""
    definition: AgentDefinition | None = None
    """The definition; None for the built-in agent."""
    data: bytes = b""
    """Bytes that the definition was read from."""
    packages: tuple[SkillPackage, ...] = ()
    """Skills that it may use, sorted by name."""
    tasks: tuple[str, ...] = ()
    """IDs of the tasks it may run."""
    models: tuple[str, ...] = ()
    """Models that may be chosen for it, its own first; empty without a restriction."""
    problems: tuple[Problem, ...] = ()
    """Problems of skills that are left out."""
    load_ms: float = 0
    """Milliseconds spent reading its skills."""
    changed: tuple[str, ...] = ()
    """Pin of its definition, if the file changed since the run started."""
    lines: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Lines of the names in its lists: `tools`, `skills`, `tasks` → name → line."""

    @property
    def model(self) -> ModelOptions:
        return self.host.settings.model

    @property
    def profile(self) -> Profile:
        return self.host.settings.runtime.profile

    @property
    def body(self) -> str:
        """Return its text for the prompt."""
        return self.definition.body.strip() if self.definition else ""

    @property
    def web(self) -> WebAccess:
        """Return the hosts it may fetch from."""
        lists = self.definition.web if self.definition else None
        return WebAccess(allowed_domains=lists.allow, denied_domains=lists.deny) if lists else WebAccess()

    def choose_tools(self, tools: Iterable[Tool]) -> tuple[Tool, ...]:
        """Return the tools that it may see. Unknown names are ignored; see `check_tools`."""
        offered = tuple(tools)
        if self.definition is None or self.definition.tools is None:
            return offered
        box = Toolbox(offered)
        visible = box.resolve(resolve_list(self.definition.tools, [tool.info.name for tool in offered]))
        return tuple(tool for tool in offered if tool.info.name in visible)

    def check_tools(self, known: Collection[str]) -> None:
        """Raise `ConfigError` for an unknown name in `tools`.

        Tools of skills and servers (`skill.tool`, `server/tool`) may be temporarily unavailable, so they are allowed.
        """
        problems = [
            describe_unknown("tool", name, known, file=str(self.definition.file), line=line)
            for name, line in self.lines.get("tools", {}).items()
            if self.definition and name not in known and "." not in name and "/" not in name
        ]
        if problems:
            raise _refuse(self.id, problems)


def resolve_agent(host: Host, agent_id: str, *, model: str = "") -> ResolvedAgent:
    """Resolve an agent by ID from the current files; empty for the built-in one. `model` is the requested model.

    Raises `UsageError` for an unknown agent and a model that it may not use, `ConfigError` with every problem of its
    definition.
    """
    if not agent_id:
        started = host.clock.monotonic()
        skills = leave_out_incomplete(get_skills(host))
        return ResolvedAgent(
            host=_apply(host, None, model=model),
            packages=skills.packages,
            tasks=tuple(list_ids(host.workspace, "task")),
            problems=skills.problems,
            load_ms=measure_ms(host.clock, started),
        )
    found = get_definition(host.workspace, "agent", agent_id)
    file = Path(found.path)
    try:
        data = read_definition_file(file, host.workspace)
    except OSError as error:
        raise ConfigError(
            f"Agent {found.id!r} cannot be used: '{file}' cannot be read: {error.strerror}",
            hint="Fix or remove it",
        ) from error
    agent = build_agent(host, found.id, data, file=file, model=model)
    skills = leave_out_incomplete(ActiveSkills(agent.packages, agent.problems))
    return replace(agent, packages=skills.packages, problems=skills.problems)


def choose_built_in(host: Host, agent_id: str) -> tuple[Host, str]:
    """Return the host without its default agent if the built-in agent is named; otherwise return both unchanged.

    An agent of the workspace with this name takes precedence, because the built-in one has more permissions. Use this
    only for commands that a user types: a caller of a server must not bypass the default agent.
    """
    if not is_built_in(host, agent_id):
        return host, agent_id
    return host.with_runtime(agent=None), BUILT_IN


def is_built_in(host: Host, agent_id: str) -> bool:
    """Return True if the name means the built-in agent and not an agent of the workspace."""
    return agent_id == BUILT_IN_NAME and agent_id not in list_definitions(host.workspace, "agent")


def get_agent_model(host: Host, agent_id: str, *, model: str) -> ModelOptions:
    """Return the model options of an agent. Raises `UsageError` for a requested model that it may not use."""
    return choose_model(host.settings.model, _read_definition(host, agent_id), wanted=model)


def approves_changes(host: Host, agent_id: str, tools: Iterable[Tool]) -> bool:
    """Return True if this agent makes changes without approval: its profile and one of its tools allow them."""
    definition = _read_definition(host, agent_id)
    if agent_id and definition is None:  # the definition is invalid, so no run starts
        return False
    if choose_profile(host.settings.runtime.profile, definition) != "permissive":
        return False
    agent = ResolvedAgent(host=host, definition=definition)
    return any(tool.info.effect != "read" for tool in agent.choose_tools(tools))


def _read_definition(host: Host, agent_id: str) -> AgentDefinition | None:
    """Read the current definition; None for the built-in agent. Raises `UsageError`, `OSError`."""
    if not agent_id:
        return None
    found = get_definition(host.workspace, "agent", agent_id)
    file = Path(found.path)
    return parse_agent(read_definition_file(file, host.workspace), file=file, id=found.id).agent


def read_definition_file(file: Path, workspace: Path) -> bytes:
    """Read the bytes of an agent or a task step. Raises `OSError`, also for a link that leads out of the workspace."""
    return read_contained(file, within=workspace, limit=MAX_FILE_BYTES)


def build_agent(host: Host, agent_id: str, data: bytes, *, file: Path, model: str = "") -> ResolvedAgent:
    """Build the agent of these bytes. Raises `ConfigError` if its lists name unknown skills or tasks."""
    agent = restore_agent(host, agent_id, data, file=file)
    known_tasks = {fold_id(each): each for each in list_ids(host.workspace, "task")}
    problems = [
        *_list_unknown_skills(agent),
        *(
            describe_unknown("task", name, known_tasks.values(), file=str(file), line=line)
            for name, line in agent.lines["tasks"].items()
            if fold_id(name) not in known_tasks
        ),
    ]
    if problems:
        raise _refuse(agent_id, problems)
    # Only for a new run: a started one has its model and its profile in its journal.
    return replace(agent, host=_apply(host, agent.definition, model=model))


def restore_agent(host: Host, agent_id: str, data: bytes, *, file: Path) -> ResolvedAgent:
    """Build the agent of these bytes for a started run. Missing skills and tasks are ignored."""
    reading = parse_agent(data, file=file, id=agent_id)
    if reading.agent is None:
        raise ConfigError(
            f"Agent {agent_id!r} cannot be used", hint="Correct the lines above", problems=reading.problems
        )
    definition = reading.agent
    root = parse_document(data, file=file).root
    started = host.clock.monotonic()
    skills = _choose_skills(host, definition.skills)
    load_ms = measure_ms(host.clock, started)
    tasks = {fold_id(each): each for each in list_ids(host.workspace, "task")}
    return ResolvedAgent(
        id=agent_id,
        host=host,
        definition=definition,
        data=data,
        packages=skills.packages,
        tasks=tuple(
            tasks[key] for key in map(fold_id, resolve_list(definition.tasks, list(tasks.values()))) if key in tasks
        ),
        models=list_models(host.settings.model, definition),
        problems=skills.problems,
        load_ms=load_ms,
        lines={key: read_names(root, key) for key in ("tools", "skills", "tasks")},
    )


def _choose_skills(host: Host, own: Sequence[str] | None) -> ActiveSkills:
    """Choose the skills. A package that the agent names must be trusted, but it needn't be enabled.

    An agent of an untrusted folder can't activate skills of the user, because skills have rules that allow calls.
    """
    found = get_all_skills(host)
    enabled = activate(found, host.settings.skills.enabled)
    if own is None:
        return ActiveSkills(enabled.packages, (*enabled.problems, *list_unread(found, host.workspace)))
    named = activate_named(found, [name for name in own if name != INHERIT])
    wanted = resolve_list(own, [package.definition.name for package in enabled.packages])
    offered = [package for package in named.packages if host.trust.is_trusted or package.source not in OPT_IN]
    # By object, because a package may be both enabled and named.
    pool = {id(package): package for package in (*enabled.packages, *offered)}
    chosen = {
        canonical_name(package.definition.name): package
        for name in wanted
        for package in pool.values()
        if is_called(package.definition, name)
    }
    inherited = enabled.problems if INHERIT in own else ()
    problems = (*inherited, *(problem for problem in named.problems if problem.code == "skill_not_trusted"))
    left_out = [package for package in named.packages if package not in offered and package not in enabled.packages]
    problems = (*problems, *map(_describe_left_out, left_out))
    return ActiveSkills(tuple(chosen[name] for name in sorted(chosen)), tuple(dict.fromkeys(problems)))


def _describe_left_out(package: SkillPackage) -> Problem:
    name = package.definition.name
    return Problem(
        severity="warning",
        code="skill_not_enabled",
        message=f"Skill {name!r} is left out: an agent of this folder names it, and you have not trusted the folder",
        file=str(package.folder),
        hint=f"`agent trust` lets agents of this folder choose skills; `agent skill enable {name} --user` enables it",
    )


def _list_unknown_skills(agent: ResolvedAgent) -> list[Problem]:
    assert agent.definition is not None
    missing = [
        (name, line)
        for name, line in agent.lines["skills"].items()
        if not any(is_called(package.definition, name) for package in agent.packages)
    ]
    if not missing:
        return []
    found, file = get_all_skills(agent.host), agent.definition.file
    names = [package.definition.name for package in found.packages]
    # Skills that exist but are not trusted are left out with a warning instead.
    unknown = [
        (name, line)
        for name, line in missing
        if not any(is_called(package.definition, name) for package in found.packages)
    ]
    return [
        replace(describe_broken(name, broken), file=str(file), line=line, hint=broken.reason.render())
        if (broken := found.find_broken(name))
        else describe_unknown("skill", name, names, file=str(file), line=line)
        for name, line in unknown
    ]


def _apply(host: Host, definition: AgentDefinition | None, *, model: str) -> Host:
    host = host.with_runtime(profile=choose_profile(host.settings.runtime.profile, definition))
    chosen = choose_model(host.settings.model, definition, wanted=model)
    return replace(host, settings=host.settings.model_copy(update={"model": chosen}))


def _refuse(agent_id: str, problems: Sequence[Problem]) -> ConfigError:
    return ConfigError(f"Agent {agent_id!r} cannot be used", hint="Correct the lines above", problems=problems)


def choose_model(options: ModelOptions, agent: AgentDefinition | None, *, wanted: str = "") -> ModelOptions:
    """Return the options for a run of this agent; `wanted` is the requested model.

    Raises `UsageError` for a model that the agent or the host does not allow. The offline provider has no models, so
    only a requested model with another provider replaces it.
    """
    name = wanted or (agent.model if agent and agent.model else "")
    chosen = _parse_model(name, options) if name else ModelName(options.provider, options.name)
    if options.provider == OFFLINE and (not wanted or chosen.provider == OFFLINE):
        return options
    check_fallbacks(options.fallback_models, options.allowed_models, provider=options.provider)
    own = list_models(options, agent)
    _check_model(chosen, name or options.name, options=options, agent=agent)
    return options.model_copy(
        update={
            "provider": chosen.provider,
            "name": chosen.model,
            "allowed_models": _narrow_models(own, options),
            "fallback_models": _list_fallbacks(own, chosen, options),
            "temperature": agent.temperature if agent and agent.temperature is not None else options.temperature,
            "max_tokens": agent.max_tokens if agent and agent.max_tokens is not None else options.max_tokens,
        }
    )


def list_models(options: ModelOptions, agent: AgentDefinition | None) -> tuple[str, ...]:
    """List the models that may be chosen for an agent, its own first; empty without a restriction."""
    if agent is None or not (agent.model or agent.allowed_models):
        return ()
    return tuple(dict.fromkeys((agent.model or options.name, *agent.allowed_models)))


def choose_profile(host: Profile, agent: AgentDefinition | None) -> Profile:
    """Return the stricter profile. An agent can only restrict the host, and one with a file is at least `guarded`."""
    if agent is None:
        return host
    # The author of a file did not choose the user's `permissive`, so the default is the profile that asks.
    return get_stricter(host, agent.profile or "guarded")


def get_stricter(one: Profile, other: Profile) -> Profile:
    return one if PROFILES.index(one) >= PROFILES.index(other) else other


def _check_model(chosen: ModelName, name: str, *, options: ModelOptions, agent: AgentDefinition | None) -> None:
    own = list_models(options, agent)
    if agent is not None and not is_allowed(chosen, own):
        hint = hint_nearest(name, own) or f"Use {_join_names(own)}"
        raise UsageError(f"Model {name!r} is not one that agent {agent.id!r} may use", hint=hint)
    if not is_allowed(chosen, options.allowed_models):
        near = hint_nearest(name, options.allowed_models)
        hint = near or f"model.allowed_models has {_join_names(options.allowed_models)}"
        raise UsageError(f"Model {name!r} is not allowed here", hint=hint)


def _parse_model(name: str, options: ModelOptions) -> ModelName:
    return parse_model_name(name, provider=options.provider)


def _narrow_models(own: tuple[str, ...], options: ModelOptions) -> tuple[str, ...]:
    # An empty list allows every model, so it must not empty the other one.
    if not own or not options.allowed_models:
        return own or options.allowed_models
    return tuple(name for name in own if is_allowed(_parse_model(name, options), options.allowed_models))


def _list_fallbacks(own: tuple[str, ...], chosen: ModelName, options: ModelOptions) -> tuple[str, ...]:
    """List the fallbacks that the agent also allows. A name without a provider keeps its original one."""
    allowed: list[str] = []
    for name in options.fallback_models:
        model = _parse_model(name, options)
        # Others are left out without an error, because the list of the settings serves all agents.
        if model.provider != OFFLINE and is_allowed(model, own):
            allowed.append(name if model.provider == chosen.provider else str(model))
    return tuple(allowed)


def _join_names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1] if names[1:] else "".join(names)
