"""All problems of a workspace: those of its definitions, and of the files that control permissions.

Validation only reads files and asks plugins for their tools. It starts no server and no toolset, so a problem that only
these could confirm is at most a warning.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from metier.approval.judge import RulePolicy
from metier.approval.profile import ProfilePolicy
from metier.approval.rules import SHELL, Rule, RuleList, Scope
from metier.approval.scopes import RuleReading, RuleSource, ScopeReader, read_rules
from metier.capabilities.contract_reader import check_capability
from metier.context.control import CONTROL_NAMES
from metier.decisions import ActionStep
from metier.definitions.agent import AgentDefinition
from metier.definitions.files.contained_path import read_contained
from metier.definitions.names import fold_id
from metier.definitions.nearest import hint_nearest
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.definitions.problems import Problem, has_errors
from metier.definitions.references import INHERIT, Permits, Reference, resolve_list
from metier.definitions.schedule import load_schedules
from metier.definitions.skills.catalog import Catalog
from metier.definitions.skills.catalog_loader import load_catalog
from metier.definitions.skills.scripts import discover_scripts, report_missing_scripts
from metier.definitions.skills.skill import SkillDefinition, find_version_problem, get_field_line, load_skill
from metier.definitions.skills.skill_names import hint_skill
from metier.definitions.skills.sources import WORKSPACE_FOLDERS, build_search_path
from metier.definitions.task import TaskDefinition, TaskStep
from metier.definitions.text.yaml_text import Node
from metier.definitions.workspace import Checked, Workspace, load_workspace, read_agent, read_task
from metier.errors import ConfigError
from metier.providers.model_names import is_allowed, parse_model_name
from metier.providers.options import OFFLINE, ModelOptions
from metier.routing.embeddings import find_embeddings_fault
from metier.runtime.build import list_tools
from metier.runtime.cleaning import SHARED_FILE, load_host_config
from metier.runtime.host import Host
from metier.runtime.workspace.agents import choose_profile
from metier.runtime.workspace.hooks import SETTINGS as HOOK_SETTINGS
from metier.runtime.workspace.hooks import load_hooks
from metier.runtime.workspace.instructions import get_context_problems, get_project_problems
from metier.runtime.workspace.lookup import get_definition, list_definitions, list_ids
from metier.runtime.workspace.plugins import get_plugins
from metier.runtime.workspace.policy import BUILT_IN_TOOLS, SCRIPT_TOOLS
from metier.runtime.workspace.skill_catalog import describe_bare_skill, get_skills, is_bare_skill, open_needs
from metier.runtime.workspace.tasks import check_schemas
from metier.skills.needs import ABSENT, SkillNeeds, describe_lacks
from metier.tools.access import AccessFile
from metier.tools.base import Tool
from metier.tools.toolbox import Toolbox

_NOT_LISTED = frozenset({*CONTROL_NAMES, "delegate", "run_task"})
"""Tools that are available regardless of a list."""
FENCE = b"---"
"""First line of a task step. Markdown files without it are notes of the author."""


# A step can name a tool that a rule always denies, belong to an invalid agent, have an acceptance command that no rule
# allows, or be in a file that no other step leads to.
class StepChecker:
    """Checks steps against their agents and against the rules and settings of the workspace."""

    def __init__(
        self, host: Host, agents: Mapping[str, AgentDefinition | None], *, is_tool: Callable[[str], bool], agent: str
    ) -> None:
        """Take `agents` by folded ID, None for invalid ones. `agent` is the default for steps that name none."""
        self._host = host
        self._agent = agent
        self._agents = agents
        self._broken = {name for name, agent in agents.items() if agent is None}
        self._is_tool = is_tool
        self._host_rules = _read_host(host)
        self._off = frozenset(name for access in AccessFile(host.workspace).load() for name in access.off)
        self._tools: Toolbox | None = None

    def check(
        self, task: TaskDefinition, *, permits: Iterable[Permits], references: Iterable[Reference]
    ) -> list[Problem]:
        """List the problems of the steps, whose `permits` and `references` have line numbers."""
        said = {each.file: each for each in permits}
        problems = self._list_broken_agents(references)
        for step in task.steps:
            own = said.get(str(step.file))
            agent = self._find_agent(step, task)
            if own is not None:
                scopes = self._read_scopes(step, task, agent)
                problems += self._check_tools(own, agent, scopes)
                problems += self._check_commands(own, step, task, agent=agent, scopes=scopes)
        return [*problems, *_list_unreached(task)]

    def _find_agent(self, step: TaskStep, task: TaskDefinition) -> AgentDefinition | None:
        """Return the agent; None for the built-in one and for a missing one."""
        name = step.agent or task.agent or self._agent
        return self._agents.get(fold_id(name)) if name else None

    def _list_broken_agents(self, references: Iterable[Reference]) -> list[Problem]:
        return [
            _problem(
                "agent_unusable",
                f"Agent {each.name!r} cannot be used, so this step can never run",
                file=each.file,
                line=each.line,
                hint="Correct the agent",
            )
            for each in references
            if each.kind == "agent" and fold_id(each.name) in self._broken
        ]

    def _read_scopes(self, step: TaskStep, task: TaskDefinition, agent: AgentDefinition | None) -> list[Scope]:
        reader = ScopeReader(root=str(self._host.workspace))
        scopes = [self._host_rules]
        if agent is not None:
            scopes.append(reader.read_agent(agent))
        scopes.append(reader.read_task(task))
        # The first step is `TASK.md`, whose rules `read_task` has read.
        return scopes if step is task.steps[0] else [*scopes, reader.read_step(step)]

    def _check_tools(self, own: Permits, agent: AgentDefinition | None, scopes: list[Scope]) -> Iterator[Problem]:
        for name, line in own.tools.items():
            if not self._is_tool(name):
                continue
            speaker = next((scope for scope in scopes if is_always_denied(name, scope.tools)), None)
            if speaker is not None:
                # The host may restrict any pack, but rules of the pack that contradict its steps are an error.
                severity = "warning" if speaker.kind == "host" else "error"
                message = f"Tool {name!r} is denied by the rules of {speaker.title}, so this step can never call it"
                hint = "Take the tool out, or change the rule"
                yield _problem("tool_denied", message, file=own.file, line=line, hint=hint, severity=severity)
            elif name in self._off:
                message = f"Tool {name!r} is turned off in this workspace, so this step does not have it"
                hint = "Turn it on in 'tool-access.json', or take it out"
                yield _problem("tool_off", message, file=own.file, line=line, hint=hint, severity="warning")
            elif agent is not None and not _has_tool(agent, name):
                message = f"Tool {name!r} is not in the list of agent {agent.id!r}; this step adds it"
                hint = "Add it to the agent too if that is meant, else take it out"
                yield _problem("tool_beyond_agent", message, file=own.file, line=line, hint=hint, severity="warning")

    def _check_commands(
        self, own: Permits, step: TaskStep, task: TaskDefinition, *, agent: AgentDefinition | None, scopes: list[Scope]
    ) -> Iterator[Problem]:
        """Report acceptance commands that are not allowed: they never run, so the step could never succeed."""
        for command, line in own.commands.items():
            reason = self._find_obstacle(command, step, task, agent=agent, scopes=scopes)
            if reason:
                message = f"The command {command!r} is never run, so this step can never succeed: {reason}"
                hint = f"Let it have {SHELL!r}, and allow the command by a rule that names it whole"
                yield _problem("command_not_allowed", message, file=own.file, line=line, hint=hint)

    def _find_obstacle(
        self, command: str, step: TaskStep, task: TaskDefinition, *, agent: AgentDefinition | None, scopes: list[Scope]
    ) -> str:
        names: tuple[str, ...] = (SHELL,)
        for owner in (agent, task.steps[0], step):
            names = resolve_list(owner.tools, names) if owner is not None else names
        if SHELL not in names:
            return f"the lists of tools leave it no {SHELL!r}"
        if self._tools is None:
            self._tools = Toolbox(list_tools((), self._host))
        profile = choose_profile(self._host.settings.runtime.profile, agent)
        # Steps of tasks run with at least `guarded`; see `tasks.apply_step`.
        asking = ProfilePolicy("guarded" if profile == "permissive" else profile, self._tools)
        policy = RulePolicy(asking, self._tools, root=str(self._host.workspace), scopes=scopes)
        verdict = policy.judge(ActionStep(type="run_command", params={"command": command}), skill="")
        return "" if verdict.decision == "allow" else verdict.reason or "a rule asks about it"


def is_always_denied(name: str, rules: RuleList) -> bool:
    """Return True if these rules deny every call of this tool."""
    for rule in rules.rules:
        if rule.applies_to(frozenset({name})):
            if rule.decision != "deny":
                return False
            if not rule.when:
                return True
    return rules.default == "deny"


def _has_tool(agent: AgentDefinition, name: str) -> bool:
    return agent.tools is None or INHERIT in agent.tools or name in agent.tools


def _read_host(host: Host) -> Scope:
    """Read the host's scope; empty if it is unreadable, which is reported for the file itself."""
    try:
        data = read_policy_file(host.workspace)
    except ConfigError:
        return Scope(kind="host")
    reader = ScopeReader(root=str(host.workspace))
    return reader.read_policy(data.decode("utf-8", "replace"), file="")


def _list_unreached(task: TaskDefinition) -> Iterator[Problem]:
    """Report unreachable steps if the chain of steps is complete. Otherwise the broken link must be fixed first."""
    if task.steps[-1].next is not None:
        return
    steps = {step.file.name.casefold() for step in task.steps}
    for file in sorted(task.steps[0].file.parent.glob("*.md")):
        if file.name.casefold() not in steps and _is_step(file):
            message = "No step leads to this file, so it never runs"
            hint = f"Write 'next: {file.name}' in the step before it, or take its front matter out"
            yield _problem("step_unreached", message, file=str(file), line=1, hint=hint, severity="warning")


def _is_step(file: Path) -> bool:
    try:
        # Only the first bytes, because a folder of steps may also contain large notes.
        return read_contained(file, within=file.parent, limit=len(FENCE))[: len(FENCE)] == FENCE
    except OSError:
        return False


class CheckedFile(Struct, frozen=True):
    """A checked file that is not a definition."""

    kind: str
    path: str
    problems: tuple[Problem, ...] = ()


class Validation(Struct, frozen=True):
    workspace: Workspace
    files: tuple[CheckedFile, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the problems of folders, definitions and other files."""
        return (
            *self.workspace.problems,
            *(problem for item in self.workspace.checked for problem in item.problems),
            *(problem for file in self.files for problem in file.problems),
        )


def load_host_catalog(host: Host) -> Catalog:
    """Load the front matter of every skill that the workspace could use."""
    sources = build_search_path(host.workspace, home=host.home, skills_dir=host.workspace / host.settings.skills.dir)
    return load_catalog(sources, cache_folder=host.cache)


def get_all_problems(host: Host, kind: str) -> dict[str, tuple[Problem, ...]]:
    """List the problems of each agent, task or skill of a workspace, by ID."""
    checked = validate_workspace(host, load_host_catalog(host)).workspace.checked
    return {item.id: item.problems for item in checked if item.kind == kind}


def check_task(host: Host, task_id: str, *, agent: str = "") -> tuple[Problem, ...]:
    """List the problems of a task's lists, rules and steps, as `agent validate` reports them.

    `agent` replaces the default agent for steps that name none. Plugins are loaded only if a tool is unknown otherwise.
    """
    item = read_task(get_definition(host.workspace, "task", task_id))
    listed = list_definitions(host.workspace, "agent")
    named = {fold_id(each.name) for each in item.references if each.kind == "agent"}
    agent = agent or host.settings.runtime.agent or ""
    named.add(fold_id(agent))
    agents = [read_agent(listed[name]) for name in sorted(named & listed.keys())]
    skills = [package.definition for package in get_skills(host).packages]
    catalog, servers = load_host_catalog(host), _check_servers(host)
    tasks = frozenset(list_ids(host.workspace, "task"))
    problems: tuple[Problem, ...] = ()
    # Plugins are code, so they are only loaded if a name is unknown without them.
    for tools in (lambda: host.tools, lambda: _list_plugin_tools(host)):
        known = _build_known(host, catalog, servers=servers, tools=tools(), skills=skills)
        checker = _Checker(root=host.workspace, known=known, tasks=tasks, model=host.settings.model, strict=False)
        problems = _check_all((*agents, item), checker, host, agent=agent)[-1].problems
        if not any(problem.code == "unknown_tool" for problem in problems):
            break
    return problems


def validate_workspace(host: Host, catalog: Catalog, *, strict: bool = False) -> Validation:
    """Validate a workspace, whose skills are in `catalog`. `strict` also applies the specification to shared skills."""
    skills_dir = host.workspace / host.settings.skills.dir
    workspace = load_workspace(host.workspace, catalog, strict=strict, skills_dir=skills_dir)
    servers = _check_servers(host)
    skills = [item.definition for item in workspace.checked if isinstance(item.definition, SkillDefinition)]
    known = _build_known(host, catalog, servers=servers, tools=_list_plugin_tools(host), skills=skills)
    tasks = frozenset(item.id for item in workspace.checked if item.kind == "task")
    checker = _Checker(root=host.workspace, known=known, tasks=tasks, model=host.settings.model, strict=strict)
    agent = host.settings.runtime.agent or ""
    return Validation(
        workspace=replace(workspace, checked=_check_all(workspace.checked, checker, host, agent=agent)),
        files=(
            *_check_policy(host.workspace, checker),
            *_check_access(host.workspace, known),
            *servers.files,
            *_check_schedules(host, workspace.checked),
            *_check_hooks(host),
            *_check_context(host),
            *_check_embeddings(host),
        ),
    )


class _Known(Struct, kw_only=True):
    """The tools that are known without starting anything."""

    plain: tuple[str, ...]
    """Tools with a plain name, not `server/tool` or `skill.tool`."""
    servers: frozenset[str] | None
    """Names of servers; None if their file can't be read."""
    catalog: Catalog
    enabled: str | tuple[str, ...]
    skills: Iterable[SkillDefinition]
    """Skills of the workspace."""
    needs: SkillNeeds
    _brings: dict[str, bool] = field(default_factory=dict[str, bool])

    def find_fault(self, name: str) -> tuple[str, str] | None:
        """Return the problem of a name in a list of tools, with a hint, or None."""
        if name in self.plain or name in CONTROL_NAMES:
            return None
        server, slash, tool = name.partition("/")
        skill, dot, _ = name.rpartition(".") if slash else name.partition(".")
        if slash and server and tool and (not dot or self.catalog.find(skill) is None):
            return self._find_server_fault(server)
        if dot and skill:
            return self._find_skill_fault(skill)
        return f"No tool is called {name!r}", hint_nearest(name, self.plain) or "Add the tool, or take the name out"

    def may_be_more(self, skills: Iterable[str]) -> bool:
        """Return True if a toolset of these or of an active skill may add tools with plain names."""
        named = {*skills, *(self.enabled if isinstance(self.enabled, tuple) else ())}
        if self.enabled in ("all", "all-untrusted"):
            named |= {skill.canonical for skill in self.catalog.skills}
        return any(skill.toolsets for skill in self.skills) or any(self._has_toolset(each) for each in named)

    def load(self, skill: str) -> SkillDefinition | None:
        """Load a skill by name; None if it is missing or unreadable."""
        found = self.catalog.find(skill)
        return load_skill(found.folder, within=found.source.within).skill if found else None

    def _find_skill_fault(self, skill: str) -> tuple[str, str] | None:
        if self.catalog.find(skill) is not None:
            return None
        hint = hint_skill(skill, [each.canonical for each in self.catalog.skills])
        return f"No skill is called {skill!r}, so it has no tool", hint or "Add the skill, or take the name out"

    def _find_server_fault(self, server: str) -> tuple[str, str] | None:
        if self.servers is None or server in self.servers:
            return None
        hint = hint_nearest(server, self.servers) or "Add it to '.agent/mcp.json', or take the name out"
        return f"No MCP server is called {server!r}", hint

    def _has_toolset(self, skill: str) -> bool:
        if skill not in self._brings:
            loaded = self.load(skill)
            self._brings[skill] = bool(loaded and loaded.toolsets)
        return self._brings[skill]


class _Checker(Struct, frozen=True, kw_only=True):
    """Checks definitions against the workspace."""

    root: Path
    known: _Known
    tasks: frozenset[str]
    model: ModelOptions
    strict: bool

    def check(self, item: Checked) -> Checked:
        found = [problem for permits in item.permits for problem in self._check_permits(permits, item)]
        if item.draft is not None:
            found += check_schemas(item.draft)
        if isinstance(item.definition, SkillDefinition):
            found += report_missing_scripts(item.definition)
            found += _check_entrypoint(item.definition)
            found += filter(None, [find_version_problem(item.definition)])
            found += check_capability(item.definition, strict=self.strict)
            found += self._check_needs(item.definition, item.references)
        return replace(item, problems=(*item.problems, *found)) if found else item

    def _read_rules(self, node: Node, file: str, subject: str) -> RuleReading:
        known = self.known.plain if subject == "tool" else self.tasks
        return read_rules(node, RuleSource(file=file, root=str(self.root), known=known, subject=subject))

    def soften(self, problem: Problem, skills: Iterable[str] = ()) -> Problem:
        """Downgrade an unknown tool to a warning if it may be the plain name of a toolset's tool."""
        if problem.code != "unknown_tool" or not self.known.may_be_more(skills):
            return problem
        return replace(problem, severity="warning", hint=f"{problem.hint}, unless a toolset brings it".lstrip(", "))

    def _check_permits(self, permits: Permits, item: Checked) -> list[Problem]:
        skills = [reference.name for reference in item.references if reference.kind == "skill"]
        problems = self._check_tools(permits, skills)
        if item.kind == "agent":
            problems += _check_models(permits, self.model)
        for node, subject in ((permits.tool_approvals, "tool"), (permits.task_approvals, "task")):
            if node is not None:
                reading = self._read_rules(node, permits.file, subject)
                problems += [self.soften(problem, skills) for problem in reading.problems]
                problems += _list_idle_rules(permits, reading.rules.rules) if subject == "tool" else []
        if item.kind == "agent" and permits.is_limit:
            problems += _list_bare_skills(permits.tools, item.references, self._get_named(skills))
        return problems

    def _get_named(self, names: Iterable[str]) -> dict[str, SkillDefinition]:
        found = ((name, self.known.load(name)) for name in names)
        return {name: skill for name, skill in found if skill is not None}

    def _check_needs(self, skill: SkillDefinition, references: Iterable[Reference]) -> list[Problem]:
        """Report dependencies and callable skills that are not active."""
        named = [reference for reference in references if reference.kind == "skill"]
        lacks = [(each, lack) for each in named if (lack := self.known.needs.find_lack(each.name)) is not None]
        return describe_lacks(skill, self.known.needs) + [
            Problem(
                severity="warning",
                code=lack.code,
                message=f"Field 'skills' names the skill {lack.name!r}, which {lack.reason}",
                file=each.file,
                line=each.line,
                hint=lack.hint,
            )
            for each, lack in lacks
            if lack.reason != ABSENT  # reported with the names of agents and tasks
        ]

    def _check_tools(self, permits: Permits, skills: Iterable[str]) -> list[Problem]:
        problems: list[Problem] = []
        for name, line in permits.tools.items():
            fault = self.known.find_fault(name)
            if fault is not None:
                problem = _problem("unknown_tool", fault[0], file=permits.file, line=line, hint=fault[1])
                problems.append(problem if "." in name or "/" in name else self.soften(problem, skills))
        return problems


class _Servers(Struct, frozen=True):
    names: frozenset[str] | None
    """Known names; None if unknown."""
    files: tuple[CheckedFile, ...] = ()


def _build_known(
    host: Host, catalog: Catalog, *, servers: _Servers, tools: Iterable[Tool], skills: Iterable[SkillDefinition]
) -> _Known:
    return _Known(
        plain=(*BUILT_IN_TOOLS, *SCRIPT_TOOLS, *(tool.info.name for tool in tools)),
        servers=servers.names,
        catalog=catalog,
        enabled=host.settings.skills.enabled,
        skills=skills,
        needs=open_needs(host),
    )


def _check_all(items: Iterable[Checked], checker: _Checker, host: Host, *, agent: str) -> tuple[Checked, ...]:
    """Check each definition, then the steps of tasks with their agents."""
    checked = [checker.check(item) for item in items]
    agents = {fold_id(item.id): _find_usable(item) for item in checked if item.kind == "agent"}
    steps = StepChecker(host, agents, is_tool=lambda name: checker.known.find_fault(name) is None, agent=agent)
    return tuple(_check_steps(item, steps) for item in checked)


def _find_usable(item: Checked) -> AgentDefinition | None:
    definition = item.definition
    return definition if isinstance(definition, AgentDefinition) and not has_errors(item.problems) else None


def _check_steps(item: Checked, steps: StepChecker) -> Checked:
    if item.draft is None:
        return item
    found = steps.check(item.draft, permits=item.permits, references=item.references)
    return replace(item, problems=(*item.problems, *found)) if found else item


def _list_plugin_tools(host: Host) -> tuple[Tool, ...]:
    return (*host.tools, *(tool for registry in get_plugins(host).registries for tool in registry.tools))


def _check_servers(host: Host) -> _Servers:
    file = host.workspace / host.settings.mcp.file
    try:
        config = load_host_config(host)
    except ConfigError as error:
        return _Servers(None, (CheckedFile("mcp", str(file), _list_problems(error, str(file))),))
    files = tuple(
        CheckedFile("mcp", str(each), tuple(problem for problem in config.warnings if problem.file == str(each)))
        for each in dict.fromkeys((file, host.workspace / SHARED_FILE))
        if each.exists()
    )
    return _Servers(frozenset(server.name for server in config.servers), files)


def _check_schedules(host: Host, checked: Iterable[Checked]) -> tuple[CheckedFile, ...]:
    """Check the schedules, including the existence of their agents and tasks."""
    found = load_schedules(host.workspace, WORKSPACE_FOLDERS)
    if not found.content and not found.problems:
        return ()
    known = {(item.kind, fold_id(item.id)): item.id for item in checked}
    problems = list(found.problems)
    for schedule in found.schedules:
        for kind, name in (("agent", schedule.agent), ("task", schedule.task)):
            if name and (kind, fold_id(name)) not in known:
                there = [item_id for (of, _), item_id in known.items() if of == kind]
                message = f"Schedule {schedule.name!r}: no {kind} is called {name!r}"
                hint = hint_nearest(name, there) or f"Add the {kind}, or take the name out"
                line = found.lines[schedule.name]
                problems.append(_problem(f"unknown_{kind}", message, file=found.file, line=line, hint=hint))
    return (CheckedFile("schedules", found.file, tuple(problems)),)


def _check_hooks(host: Host) -> tuple[CheckedFile, ...]:
    try:
        found = load_hooks(host)
    except ConfigError as error:
        wrong = [problem for problem in error.problems if isinstance(problem, Problem)]
        files = dict.fromkeys(problem.file for problem in wrong)
        return tuple(CheckedFile("hooks", file, tuple(each for each in wrong if each.file == file)) for file in files)
    named = dict.fromkeys((*(hook.source for hook in found.hooks), *found.withheld))
    return tuple(CheckedFile("hooks", file) for file in named if file != HOOK_SETTINGS)


def _check_policy(workspace: Path, checker: _Checker) -> tuple[CheckedFile, ...]:
    file = str(workspace / POLICY_FILE)
    try:
        data = read_policy_file(workspace)
    except ConfigError as error:
        return (CheckedFile("policy", file, _list_problems(error, file)),)
    if not data:
        return ()
    reader = ScopeReader(root=str(workspace), tools=checker.known.plain, tasks=checker.tasks)
    reader.read_policy(data.decode("utf-8", "replace"), file=file)
    return (CheckedFile("policy", file, tuple(checker.soften(problem) for problem in reader.problems)),)


def _check_access(workspace: Path, known: _Known) -> tuple[CheckedFile, ...]:
    """Check the access file, because a misspelled tool would stay enabled."""
    checked: list[CheckedFile] = []
    for reading in AccessFile(workspace).load():
        unknown = [
            _problem("unknown_tool", fault[0], file=str(reading.file), line=line, hint=fault[1])
            for name, line in reading.lines.items()
            if (fault := known.find_fault(name)) is not None
        ]
        checked.append(CheckedFile("tool-access", str(reading.file), (*reading.problems, *unknown)))
    return tuple(checked)


def _check_context(host: Host) -> tuple[CheckedFile, ...]:
    found = get_context_problems(host.workspace) | get_project_problems(host)
    return tuple(CheckedFile("context", str(file), problems) for file, problems in found.items())


def _check_embeddings(host: Host) -> tuple[CheckedFile, ...]:
    """Check the embeddings. Without them, runs rank skills by words only, which is easy to miss."""
    options = host.settings.embeddings
    if options is None or not options.is_on:
        return ()
    path = str(host.workspace / options.folder) if options.folder else ""
    fault = find_embeddings_fault(options, workspace=host.workspace, environ=host.environ)
    if fault is None:
        return (CheckedFile("embeddings", path),) if path else ()
    message = f"Skills are ranked by words only: {fault.message}"
    problem = Problem(severity="warning", code="embeddings_unavailable", message=message, file=path, hint=fault.hint)
    return (CheckedFile("embeddings", path, (problem,)),)


def _check_models(permits: Permits, options: ModelOptions) -> list[Problem]:
    """Report models that the host does not allow. As the main model this is an error; in a list it has no effect."""
    host = options.allowed_models
    if not host or options.provider == OFFLINE:
        return []
    hint = f"model.allowed_models has {', '.join(host)}"
    wrong = [
        _problem("model_not_allowed", f"Model {name!r} is not allowed here", file=permits.file, line=line, hint=hint)
        for name, line in permits.model.items()
        if not is_allowed(parse_model_name(name, provider=options.provider), host)
    ]
    useless = [
        _problem("model_not_allowed", f"Model {name!r} has no effect", file=permits.file, line=line, hint=hint)
        for name, line in permits.allowed_models.items()
        if not is_allowed(parse_model_name(name, provider=options.provider), host)
    ]
    return [*wrong, *(replace(problem, severity="warning") for problem in useless)]


def _check_entrypoint(skill: SkillDefinition) -> list[Problem]:
    if skill.entrypoint is None:
        return []
    wanted = skill.entrypoint.script.lower().removesuffix(".py") + ".py"
    scripts = [script.name for script in discover_scripts(skill)]
    if wanted in scripts:
        return []
    line = get_field_line(skill, "entrypoint")
    message = f"The entrypoint names the script {skill.entrypoint.script!r}, which the skill does not have"
    hint = hint_nearest(wanted, scripts) or f"Add 'scripts/{wanted}'"
    return [_problem("missing_script", message, file=str(skill.file), line=line, hint=hint)]


def _list_problems(error: ConfigError, file: str) -> tuple[Problem, ...]:
    found = tuple(problem for problem in error.problems if isinstance(problem, Problem))
    return found or (_problem("unreadable", error.message, file=file, line=1),)


def _problem(
    code: str, message: str, *, file: str, line: int, hint: str = "", severity: Literal["error", "warning"] = "error"
) -> Problem:
    return Problem(severity=severity, code=code, message=message, file=file, line=line, hint=hint)


def _list_idle_rules(permits: Permits, rules: Iterable[Rule]) -> list[Problem]:
    """List rules for tools that are missing from the tool list of the same file."""
    if not permits.is_limit:
        return []
    idle = [rule for rule in rules if not _covers(permits.tools, rule)]
    return [
        Problem(
            severity="warning",
            code="idle_rule",
            message=f"Rule {rule.number} is about {rule.subject!r}, which is not among the tools, so it has no effect",
            file=permits.file,
            line=rule.line,
            hint="Add it to 'tools', or take the rule out",
        )
        for rule in idle
    ]


def _list_bare_skills(
    tools: Collection[str], references: Sequence[Reference], skills: Mapping[str, SkillDefinition]
) -> Iterator[Problem]:
    """List skills of an agent whose tool list has no tool in common with the agent's."""
    for reference in references:
        skill = skills.get(reference.name) if reference.kind == "skill" else None
        if skill is not None and is_bare_skill(skill, tools):
            yield Problem(
                severity="warning",
                code="no_tools_left",
                message=describe_bare_skill(skill, tools),
                file=reference.file,
                line=reference.line,
                hint="Name a tool in both lists, or write 'inherit' in that of the skill",
            )


def _covers(tools: Collection[str], rule: Rule) -> bool:
    if rule.subject in _NOT_LISTED:
        return True
    if rule.is_broad:
        return any(name.startswith(rule.subject[:-1]) for name in tools)
    return rule.subject in tools
