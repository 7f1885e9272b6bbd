"""Which versions of Metier a skill asks for, and whether this is one of them. Pure."""

from metier.definitions.releases import BadVersion, parse_release
from metier.definitions.skills.skill import SkillDefinition
from metier.version import __version__


def find_version_fault(skill: SkillDefinition) -> str:
    """Why the skill cannot be used with this version of Metier; empty where it can."""
    bounds = ((skill.min_agent_base_version, True), (skill.max_agent_base_version, False))
    for bound, is_minimum in bounds:
        if not bound:
            continue
        try:
            wanted, own = parse_release(bound).rank, parse_release(__version__).rank
        except BadVersion:
            return f"Skill {skill.name!r} asks for version {bound!r}, which is none"
        if (own < wanted) if is_minimum else (own > wanted):
            word = "at least" if is_minimum else "at most"
            return f"Skill {skill.name!r} needs {word} version {bound}, this is {__version__}"
    return ""
