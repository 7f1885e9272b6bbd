"""The `<available_skills>` block in the form of the Agent Skills reference library."""

import html
from collections.abc import Iterable

from metier.definitions.skills.skill import SkillDefinition


def render_available_skills(skills: Iterable[SkillDefinition]) -> str:
    lines = ["<available_skills>"]
    for skill in skills:
        lines += ["<skill>"]
        lines += ["<name>", html.escape(skill.name), "</name>"]
        lines += ["<description>", html.escape(skill.description), "</description>"]
        lines += ["<location>", str(skill.file), "</location>"]
        lines += ["</skill>"]
    return "\n".join([*lines, "</available_skills>"])
