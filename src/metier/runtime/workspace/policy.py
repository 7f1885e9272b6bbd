"""The policy of a run: the host's file, the rules of its definitions, the profile. Reads; the judging is elsewhere."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from metier.approval.denied_programs import find_denied_programs
from metier.approval.judge import RulePolicy
from metier.approval.profile import ProfilePolicy
from metier.approval.rules import Scope
from metier.approval.scopes import ScopeReader
from metier.dataclass import dataclass
from metier.definitions.agent import AgentDefinition
from metier.definitions.inherit import find_limit
from metier.definitions.names import canonical_name
from metier.definitions.policy_file import POLICY_FILE
from metier.definitions.profile import Profile
from metier.definitions.skills.naming import is_called
from metier.definitions.task import TaskDefinition, TaskStep
from metier.skills.package import SkillPackage
from metier.skills.trust.judgement import is_trusted
from metier.tools.toolbox import Toolbox

BUILT_IN_TOOLS = ("Read", "Write", "Edit", "Glob", "Grep", "Bash", "WebFetch", "WebSearch", "delegate", "run_task")
"""Names that rules may use wherever they are read, also where the tool itself is turned off."""
HOST_FILE = "withheld:policy"
DEFINITIONS = "withheld:definitions"
"""The host's file; agents, tasks and steps. They are pinned beside the names of trusted skills, which have no colon."""
SCRIPT_TOOLS = ("script_list", "script_help", "script_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speakers:
    """The sources of rules in a run beside its skills."""

    host: bytes
    """The rules of the workspace."""
    agent: AgentDefinition | None = None
    task: TaskDefinition | None = None
    step: TaskStep | None = None
    """The step of that task; `TASK.md` speaks for itself."""
    trusted: Callable[[SkillPackage], bool] = is_trusted
    """The skills whose rules may allow something."""
    known: Collection[str] | None = ()
    """What rules may name beside the tools of the run, such as those its agent does not see; None: anything."""
    withheld: frozenset[str] = frozenset()
    """Of `HOST_FILE` and `DEFINITIONS`, those whose rules may not allow anything."""


def open_reader(workspace: Path, tools: Toolbox, *, known: Collection[str] | None = ()) -> ScopeReader:
    """`known` are names that rules may use beside those of the tools; None: rules that were checked before."""
    if known is None:
        return ScopeReader(root=str(workspace))
    names = frozenset((*BUILT_IN_TOOLS, *SCRIPT_TOOLS, *tools.names(), *known))
    return ScopeReader(root=str(workspace), tools=names)


def read_host(reader: ScopeReader, text: bytes, *, workspace: Path) -> Scope:
    """Raises `ConfigError` with every problem of the file."""
    scope = reader.read_policy(text.decode("utf-8", "replace"), file=str(workspace / POLICY_FILE))
    reader.check("The policy of this workspace")
    return scope


def build_policy(
    packages: Sequence[SkillPackage],
    tools: Toolbox,
    *,
    workspace: Path,
    profile: Profile,
    speakers: Speakers,
    is_partial: bool = False,
) -> RulePolicy:
    """Host, agent and skills; of those the one in charge speaks. Raises `ConfigError` when a rule cannot be used.

    `is_partial`: toolsets and servers, which say what they offer by running, have not been asked.
    """
    reader = open_reader(workspace, tools, known=speakers.known)
    host = read_host(reader, speakers.host, workspace=workspace)
    scopes: list[Scope] = []
    if speakers.agent is not None:
        scopes.append(reader.read_agent(speakers.agent))
        reader.check(f"The rules of agent {speakers.agent.id!r}")
    if speakers.task is not None:
        scopes.append(reader.read_task(speakers.task))
        if speakers.step is not None and speakers.step is not speakers.task.steps[0]:
            scopes.append(reader.read_step(speakers.step))
        reader.check(f"The rules of task {speakers.task.id!r}")
    scopes = [
        replace(host, is_trusted=HOST_FILE not in speakers.withheld),
        *(replace(scope, is_trusted=DEFINITIONS not in speakers.withheld) for scope in scopes),
    ]
    speaking = [package for package in packages if has_rules(package)]
    skills = [
        _name_fully(reader.read_skill(package.definition, is_trusted=speakers.trusted(package)), packages)
        for package in speaking
    ]
    reader.check("The rules of a skill")
    asking = ProfilePolicy(profile, tools)
    return RulePolicy(asking, tools, root=str(workspace), scopes=scopes, skills=skills, is_partial=is_partial)


def _name_fully(scope: Scope, packages: Sequence[SkillPackage]) -> Scope:
    """A skill that is listed by its name is listed by its ID too, and the other way round."""
    listed = scope.limits.get("skills")
    if not listed:
        return scope
    named = [each.definition for each in packages if any(is_called(each.definition, name) for name in listed)]
    names = {canonical_name(name) for skill in named for name in (skill.name, skill.id)}
    return replace(scope, limits={**scope.limits, "skills": listed | names})


def find_denied(workspace: Path, speakers: Speakers) -> frozenset[str]:
    """Programs that the rules deny whatever their arguments are. Mistakes in the rules are told by `build_policy`."""
    reader = ScopeReader(root=str(workspace))
    scopes = [reader.read_policy(speakers.host.decode("utf-8", "replace"), file="")]
    if speakers.agent is not None:
        scopes.append(reader.read_agent(speakers.agent))
    if speakers.task is not None:
        scopes.append(reader.read_task(speakers.task))
        if speakers.step is not None:
            scopes.append(reader.read_step(speakers.step))
    return find_denied_programs(scopes)


def read_skill_scope(reader: ScopeReader, package: SkillPackage) -> Scope:
    """Trust is that of the bytes the rules were just read from."""
    return reader.read_skill(package.definition, is_trusted=is_trusted(package))


def build_rules_policy(text: str, *, file: str, root: Path) -> RulePolicy:
    """One file of rules alone, judged as an agent's would be. Raises `ConfigError`."""
    reader = ScopeReader(root=str(root), tools=frozenset((*BUILT_IN_TOOLS, *SCRIPT_TOOLS)))
    return _build_alone(reader.read_policy(text, file=file, kind="agent"), reader, root=root)


def build_definition_policy(file: Path, *, root: Path) -> RulePolicy:
    """The approvals of an `AGENT.md`, `SKILL.md` or step alone. Raises `ConfigError`."""
    reader = ScopeReader(root=str(root), tools=frozenset((*BUILT_IN_TOOLS, *SCRIPT_TOOLS)))
    return _build_alone(reader.read_definition(file), reader, root=root)


def _build_alone(scope: Scope, reader: ScopeReader, *, root: Path) -> RulePolicy:
    reader.check("The rules")
    tools = Toolbox()
    return RulePolicy(ProfilePolicy("guarded", tools), tools, root=str(root), scopes=(scope,), is_partial=True)


def has_rules(package: SkillPackage) -> bool:
    """The skill has rules on what may happen."""
    skill = package.definition
    has_lists = any(find_limit(names) is not None for names in (skill.tools, skill.skills, skill.tasks))
    return has_lists or bool(skill.tool_approvals or skill.task_approvals or skill.allowed_tools)
