"""The policy of a run: built from the host's file, the rules of its definitions, and the profile."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import RulePolicy
from metier.approval.profile import ProfilePolicy
from metier.approval.rules import ALLOW, OutsideScripts, Scope
from metier.approval.scopes import ScopeReader
from metier.approval.shell import list_denied_programs
from metier.decisions import ActionStep
from metier.definitions.agent import AgentDefinition
from metier.definitions.names import canonical_name
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.definitions.problems import has_errors
from metier.definitions.references import find_limit
from metier.definitions.skills.skill_names import is_called
from metier.definitions.skills.skill_rules import scan_outside_scripts
from metier.definitions.task import TaskDefinition, TaskStep
from metier.errors import ConfigError
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import is_trusted
from metier.tools.toolbox import Toolbox

BUILT_IN_TOOLS = ("Read", "Write", "Edit", "Glob", "Grep", "Bash", "WebFetch", "WebSearch", "delegate", "run_task")
"""Names that rules may use even if the tool is disabled."""
HOST_FILE = "withheld:policy"
DEFINITIONS = "withheld:definitions"
"""Markers for untrusted rules in the host's file and in definitions. Skill names, pinned with them, have no colon."""
SCRIPT_TOOLS = ("script_list", "script_help", "script_run")

_RULES_LINE = re.compile(r"^(?P<indent>[ ]*)rules:[ ]*(?:#.*)?$")
_NEW_POLICY = "tool_approvals:\n  rules:\n"
_NAMING_ARGUMENTS = ("skill_name", "script_name", "script", "agent", "task")
"""Arguments that name the skill, script, agent or task of a call."""
# Without quotes, YAML 1.1 reads these as booleans or null.
_YAML_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class PolicySources(Struct, frozen=True, kw_only=True):
    """The sources of rules in a run, other than its skills."""

    host: bytes
    """Rules of the workspace."""
    agent: AgentDefinition | None = None
    task: TaskDefinition | None = None
    step: TaskStep | None = None
    """Step of that task; `TASK.md` has its own rules."""
    trusted: Callable[[SkillPackage], bool] = is_trusted
    """Returns True for skills whose rules may allow something."""
    known: Collection[str] | None = ()
    """Names that rules may use besides the run's tools, such as tools hidden from its agent; None allows any name."""
    withheld: frozenset[str] = frozenset()
    """Markers (`HOST_FILE`, `DEFINITIONS`) of rules that must not allow anything."""
    outside: OutsideScripts = MappingProxyType({})
    """Scripts outside of their folder that skills mention."""
    access: Scope | None = None
    """Tools disabled by `tool-access.json`; None in a run, which reads the file before each turn."""


def open_reader(workspace: Path, tools: Toolbox, *, known: Collection[str] | None = ()) -> ScopeReader:
    """Open a reader. `known` are valid names besides the tools; None for rules that were checked before."""
    if known is None:
        return ScopeReader(root=str(workspace))
    names = frozenset((*BUILT_IN_TOOLS, *SCRIPT_TOOLS, *tools.names(), *known))
    return ScopeReader(root=str(workspace), tools=names)


def read_host(reader: ScopeReader, text: bytes, *, workspace: Path) -> Scope:
    """Read the host's scope. Raises `ConfigError` with every problem of the file."""
    scope = reader.read_policy(text.decode("utf-8", "replace"), file=str(workspace / POLICY_FILE))
    reader.check("The policy of this workspace")
    return scope


def build_policy(
    packages: Sequence[SkillPackage],
    tools: Toolbox,
    *,
    workspace: Path,
    profile: ProfilePolicy,
    sources: PolicySources,
    is_partial: bool = False,
) -> RulePolicy:
    """Build the policy from the rules of the host, the definitions and the skills. Raises `ConfigError`.

    With `is_partial`, tools of toolsets and servers may be missing, because these have not been started.
    """
    reader = open_reader(workspace, tools, known=sources.known)
    host = read_host(reader, sources.host, workspace=workspace)
    scopes: list[Scope] = []
    if sources.agent is not None:
        scopes.append(reader.read_agent(sources.agent))
        reader.check(f"The rules of agent {sources.agent.id!r}")
    if sources.task is not None:
        scopes.append(reader.read_task(sources.task))
        if sources.step is not None and sources.step is not sources.task.steps[0]:
            scopes.append(reader.read_step(sources.step))
        reader.check(f"The rules of task {sources.task.id!r}")
    scopes = [
        *([sources.access] if sources.access is not None and sources.access.tools.rules else []),
        replace(host, is_trusted=HOST_FILE not in sources.withheld),
        *(replace(scope, is_trusted=DEFINITIONS not in sources.withheld) for scope in scopes),
    ]
    skills = [
        replace(
            _name_fully(reader.read_skill(package.definition, is_trusted=sources.trusted(package)), packages),
            outside=sources.outside.get(canonical_name(package.definition.name), ()),
        )
        for package in packages
        if has_rules(package) or canonical_name(package.definition.name) in sources.outside
    ]
    reader.check("The rules of a skill")
    return RulePolicy(profile, tools, root=str(workspace), scopes=scopes, skills=skills, is_partial=is_partial)


def list_outside_scripts(packages: Iterable[SkillPackage], workspace: Path) -> OutsideScripts:
    """List the scripts outside of a skill's folder that its text mentions, by skill. Workspace paths are relative."""
    base = f"{workspace.as_posix().rstrip('/')}/"
    found = {
        canonical_name(package.definition.name): tuple(
            dict.fromkeys(
                path
                for script in scan_outside_scripts(package.definition.body, package.definition.folder)
                for path in (script.path.removeprefix(base), script.written)
            )
        )
        for package in packages
    }
    return {name: paths for name, paths in found.items() if paths}


def _name_fully(scope: Scope, packages: Sequence[SkillPackage]) -> Scope:
    """Extend the list of skills, so that it contains both the name and the ID of each."""
    listed = scope.limits.get("skills")
    if not listed:
        return scope
    named = [each.definition for each in packages if any(is_called(each.definition, name) for name in listed)]
    names = {canonical_name(name) for skill in named for name in (skill.name, skill.id)}
    return replace(scope, limits={**scope.limits, "skills": listed | names})


class NewDenials:
    """Deny rules added to the workspace's policy file after a run was pinned to it.

    They apply at once, so that a new rule can stop a running or waiting run. The denial is recorded as the step's
    result, so a replay doesn't read the file.
    """

    def __init__(self, workspace: Path, pinned: bytes, *, tools: Toolbox, root: Path) -> None:
        self._workspace = workspace
        self._root = root
        self._tools = tools
        self._text = pinned
        self._policy: RulePolicy | None = None

    def find(self, action: ActionStep) -> str:
        """Return why the current rules deny this call; empty if they don't. An invalid file denies every call."""
        try:
            policy = self._read()
        except ConfigError as error:
            return str(error)
        # Rules only: the run's own policy has already checked that the call can run at all.
        verdict = policy.judge_tool(action, skill="") if policy is not None else ALLOW
        return verdict.reason if verdict.decision == "deny" else ""

    def _read(self) -> RulePolicy | None:
        text = read_policy_file(self._workspace)
        if text != self._text:
            scope = read_host(ScopeReader(root=str(self._root)), text, workspace=self._workspace)
            # Permissive, so that only rules of the file deny here. The run's own policy has already judged the call by
            # its profile.
            permissive = ProfilePolicy("permissive", self._tools)
            self._policy = RulePolicy(permissive, self._tools, root=str(self._root), scopes=(scope,), is_partial=True)
            # Last, because reading raises for an invalid file: it is read again at the next call, and denies that one
            # too.
            self._text = text
        return self._policy


def list_denied(workspace: Path, sources: PolicySources) -> frozenset[str]:
    """List programs that the rules always deny. Problems of the rules are reported by `build_policy`."""
    reader = ScopeReader(root=str(workspace))
    scopes = [reader.read_policy(sources.host.decode("utf-8", "replace"), file="")]
    if sources.agent is not None:
        scopes.append(reader.read_agent(sources.agent))
    if sources.task is not None:
        scopes.append(reader.read_task(sources.task))
        if sources.step is not None:
            scopes.append(reader.read_step(sources.step))
    return list_denied_programs(scopes)


def read_skill_scope(reader: ScopeReader, package: SkillPackage) -> Scope:
    """Read the scope of a skill, with trust in exactly the bytes that the rules were read from."""
    return reader.read_skill(package.definition, is_trusted=is_trusted(package))


def build_rules_policy(text: str, *, file: str, root: Path) -> RulePolicy:
    """Build the policy of one rules file, evaluated like an agent's. Raises `ConfigError`."""
    reader = ScopeReader(root=str(root), tools=frozenset((*BUILT_IN_TOOLS, *SCRIPT_TOOLS)))
    return _build_alone(reader.read_policy(text, file=file, kind="agent"), reader, root=root)


def build_definition_policy(file: Path, *, root: Path) -> RulePolicy:
    """Build the policy of the approvals of an `AGENT.md`, `SKILL.md` or step alone. Raises `ConfigError`."""
    reader = ScopeReader(root=str(root), tools=frozenset((*BUILT_IN_TOOLS, *SCRIPT_TOOLS)))
    return _build_alone(reader.read_definition(file), reader, root=root)


def _build_alone(scope: Scope, reader: ScopeReader, *, root: Path) -> RulePolicy:
    reader.check("The rules")
    tools = Toolbox()
    # The profile that asks, so that `allow` in the result comes from the rules and not from a default.
    return RulePolicy(ProfilePolicy("guarded", tools), tools, root=str(root), scopes=(scope,), is_partial=True)


def has_rules(package: SkillPackage) -> bool:
    """Return True if the skill has approval rules."""
    skill = package.definition
    has_lists = any(find_limit(names) is not None for names in (skill.tools, skill.skills, skill.tasks))
    return has_lists or bool(skill.tool_approvals or skill.task_approvals or skill.allowed_tools)


def build_rule(tool: str, arguments: dict[str, JsonValue]) -> str:
    """Build a YAML rule that allows similar calls: the same command, host or folder, otherwise the same tool."""
    lines = [f"- tool: {_quote(tool)}", "  allow: true"]
    if condition := _get_condition(tool, arguments):
        lines.append(f"  when: {condition}")
    return "\n".join(lines) + "\n"


# The rule is appended, so that existing rules that deny or ask take precedence.
def add_rule(policy: str, rule: str, *, file: str, root: str) -> str:
    """Append the rule to the text of the policy file. Raises `ConfigError` if the text has an unusual form."""
    # As text, because dumping a parsed file would lose its comments. Counting the rules shows whether the edit worked.
    text = _insert(policy, rule) if policy.strip() else _NEW_POLICY + _indent(rule, 4)
    before, after = (_count_rules(each, file=file, root=root) for each in (policy, text or ""))
    if text is None or after != before + 1:
        raise ConfigError(
            f"The rule cannot be added to '{file}' as that file is written; nothing was changed",
            hint=f"Add it by hand:\n{rule}",
        )
    return text


def _get_condition(tool: str, arguments: dict[str, JsonValue]) -> str:
    match tool:
        # The whole command: a prefix would also match the command with another one appended.
        case "Bash":
            return f"{{command: {{equals: {_quote(str(arguments.get('command', '')))}}}}}"
        case "WebFetch":
            host = urlsplit(str(arguments.get("url", ""))).hostname or ""
            return f"{{url.host: {{equals: {_quote(host)}}}}}"
        case "Write" | "Edit":
            path = PurePosixPath(str(arguments.get("path", "")))
            folder = str(path.parent)
            # As a prefix, the top folder would allow writing to every file.
            if folder in ("", ".", "/"):
                return f"{{path: {{equals: {_quote(str(path))}}}}}"
            return f"{{path: {{startsWith: {_quote(folder + '/')}}}}}"
        case _:
            chosen = [
                f"{key}: {{equals: {_quote(value)}}}"
                for key, value in arguments.items()
                if key in _NAMING_ARGUMENTS and isinstance(value, str)
            ]
            return f"{{{', '.join(chosen)}}}" if chosen else ""


def _quote(text: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text) and text not in _YAML_WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _insert(policy: str, rule: str) -> str | None:
    """Insert after the last rule of the first list; None if there is none in the usual form."""
    lines = policy.rstrip("\n").split("\n")
    for number, line in enumerate(lines):
        found = _RULES_LINE.match(line)
        if found is None:
            continue
        indent = len(found["indent"])
        body = [
            at for at in range(number + 1, len(lines)) if lines[at].strip() and not lines[at].lstrip().startswith("#")
        ]
        end, step = number, indent + 2
        for at in body:
            deep = len(lines[at]) - len(lines[at].lstrip())
            is_item = lines[at].lstrip().startswith("- ")
            if deep < indent or (deep == indent and not is_item):
                break
            # New rules are indented like the first one.
            step = deep if end == number else step
            end = at
        return "\n".join([*lines[: end + 1], _indent(rule, step).rstrip("\n"), *lines[end + 1 :]]) + "\n"
    return None


def _indent(text: str, depth: int) -> str:
    return "".join(f"{' ' * depth}{line}\n" for line in text.rstrip("\n").split("\n"))


def _count_rules(text: str, *, file: str, root: str) -> int:
    """Count the rules; -1 if the text is invalid."""
    reader = ScopeReader(root=root)
    scope = reader.read_policy(text, file=file)
    return -1 if has_errors(reader.problems) else len(scope.tools.rules)
