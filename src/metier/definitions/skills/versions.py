"""Which versions of Metier a skill asks for, and whether this is one of them. Pure."""

from packaging.version import InvalidVersion, Version

from metier.definitions.problems import Problem
from metier.definitions.skills.skill import SkillDefinition, get_field_line
from metier.version import __version__


def find_version_problem(skill: SkillDefinition) -> Problem | None:
    """Why the skill cannot be used with this version of Metier; None if it can."""
    bounds = (
        ("min_agent_base_version", skill.min_agent_base_version),
        ("max_agent_base_version", skill.max_agent_base_version),
    )
    for key, bound in bounds:
        if bound and (fault := _get_fault(skill.name, bound, is_minimum=key.startswith("min"))):
            line = get_field_line(skill, key)
            return Problem(severity="error", code="needs_version", message=fault, file=str(skill.file), line=line)
    return None


def _get_fault(name: str, bound: str, *, is_minimum: bool) -> str:
    try:
        wanted, own = Version(bound), Version(__version__)
    except InvalidVersion:
        return f"Skill {name!r} asks for version {bound!r}, which is none"
    if (own < wanted) if is_minimum else (own > wanted):
        word = "at least" if is_minimum else "at most"
        return f"Skill {name!r} needs {word} version {bound}, this is {__version__}"
    return ""
