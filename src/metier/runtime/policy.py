"""The policy of a run: the host's file, the rules of its definitions, the profile. Reads; the judging is elsewhere."""

from collections.abc import Callable, Sequence
from pathlib import Path

from metier.approval.judge import RulePolicy
from metier.approval.profile import Profile, ProfilePolicy
from metier.approval.rules import Scope
from metier.approval.scopes import POLICY_FILE, ScopeReader
from metier.definitions.agent import AgentDefinition
from metier.errors import ConfigError
from metier.skills.package import SkillPackage
from metier.skills.trust import is_trusted
from metier.tools.toolbox import Toolbox

BUILT_IN_TOOLS = ("Read", "Write", "Edit", "Glob", "Grep", "Bash", "WebFetch", "delegate")
"""Names that rules may use wherever they are read, also where the tool itself is turned off."""
SCRIPT_TOOLS = ("script_list", "script_help", "script_run")


def read_policy_file(workspace: Path) -> bytes:
    """The host's rules as they stand; nothing where there is no such file."""
    file = workspace / POLICY_FILE
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"The policy '{file}' cannot be read: {error.strerror}") from error


def open_reader(workspace: Path, tools: Toolbox) -> ScopeReader:
    return ScopeReader(root=str(workspace), tools=frozenset((*BUILT_IN_TOOLS, *SCRIPT_TOOLS, *tools.names())))


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
    host: bytes,
    trusted: Callable[[SkillPackage], bool] = is_trusted,
) -> RulePolicy:
    """Host and skills; of those the one in charge speaks. Raises `ConfigError` when a rule cannot be used."""
    reader = open_reader(workspace, tools)
    scope = read_host(reader, host, workspace=workspace)
    speaking = [package for package in packages if has_rules(package)]
    skills = [reader.read_skill(package.definition, is_trusted=trusted(package)) for package in speaking]
    reader.check("The rules of a skill")
    return RulePolicy(ProfilePolicy(profile, tools), tools, root=str(workspace), scopes=(scope,), skills=skills)


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


def build_agent_policy(
    agent: AgentDefinition, packages: Sequence[SkillPackage], tools: Toolbox, *, workspace: Path
) -> RulePolicy:
    """The host, an agent, and the skills it may put in charge. Raises `ConfigError`."""
    reader = open_reader(workspace, tools)
    host = read_host(reader, read_policy_file(workspace), workspace=workspace)
    scope = reader.read_agent(agent)
    reader.check(f"The rules of agent {agent.id!r}")
    skills = [read_skill_scope(reader, package) for package in packages if has_rules(package)]
    reader.check("The rules of a skill")
    profile = ProfilePolicy(agent.profile or "guarded", tools)
    return RulePolicy(profile, tools, root=str(workspace), scopes=(host, scope), skills=skills)


def _build_alone(scope: Scope, reader: ScopeReader, *, root: Path) -> RulePolicy:
    reader.check("The rules")
    tools = Toolbox()
    return RulePolicy(ProfilePolicy("guarded", tools), tools, root=str(root), scopes=(scope,))


def has_rules(package: SkillPackage) -> bool:
    """It has a word to say on what may happen."""
    skill = package.definition
    return bool(skill.tool_approvals or skill.task_approvals or skill.allowed_tools)
