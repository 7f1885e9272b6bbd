"""Consistency of tool lists: rules about tools that a list leaves out, skills that a list leaves without tools.

Pure. What is found is a warning: it runs, and does less than its words say.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from metier.approval.rules import Rule
from metier.context.control import CONTROL_NAMES
from metier.definitions.problems import Problem
from metier.definitions.references import Permits, Reference, find_limit
from metier.definitions.skills.skill import SkillDefinition
from metier.events.skill import SkillWithoutTools
from metier.skills.package import SkillPackage
from metier.tools.toolbox import Toolbox

_NOT_LISTED = frozenset({*CONTROL_NAMES, "delegate", "run_task"})
"""Tools that are available regardless of a list."""
_SHOWN = 8


def list_idle_rules(permits: Permits, rules: Iterable[Rule]) -> list[Problem]:
    """List rules for tools that the adjacent list leaves out."""
    if not permits.is_limit:
        return []
    idle = [rule for rule in rules if not _is_listed(rule, permits.tools)]
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


def list_bare_skills(
    tools: Collection[str], references: Sequence[Reference], skills: Mapping[str, SkillDefinition]
) -> Iterator[Problem]:
    """List skills that an agent names and whose list has none of its tools."""
    for reference in references:
        skill = skills.get(reference.name) if reference.kind == "skill" else None
        if skill is not None and is_bare(skill, tools):
            yield Problem(
                severity="warning",
                code="no_tools_left",
                message=describe_bare(skill, tools),
                file=reference.file,
                line=reference.line,
                hint="Name a tool in both lists, or write 'inherit' in that of the skill",
            )


def list_notices(packages: Iterable[SkillPackage], tools: Toolbox) -> list[SkillWithoutTools]:
    """List a run's skills whose list has none of its tools."""
    names = tools.names()
    limits = ((package.definition, find_limit(package.definition.tools)) for package in packages)
    bare = [skill for skill, limit in limits if limit and names and tools.resolve(limit).isdisjoint(names)]
    return [SkillWithoutTools(skill_name=skill.name, message=describe_bare(skill, names)) for skill in bare]


def is_bare(skill: SkillDefinition, tools: Collection[str]) -> bool:
    """Return True if both lists name tools but have none in common."""
    limit = find_limit(skill.tools)
    return bool(limit) and bool(tools) and not set(limit or ()) & set(tools)


def describe_bare(skill: SkillDefinition, tools: Collection[str]) -> str:
    names = sorted(tools)
    shown = names if len(names) <= _SHOWN else [*names[:_SHOWN], "others"]
    return (
        f"While skill {skill.name!r} is in charge no tool is left: it lists {', '.join(skill.tools or ())}, "
        f"and the agent has {', '.join(shown)}"
    )


def _is_listed(rule: Rule, tools: Collection[str]) -> bool:
    if rule.subject in _NOT_LISTED:
        return True
    if rule.is_broad:
        return any(name.startswith(rule.subject[:-1]) for name in tools)
    return rule.subject in tools
