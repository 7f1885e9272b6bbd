"""The operating instructions of a run, assembled from texts by subject. Pure.

Workspace files can't replace this layer. Subjects for which the run has no tools are omitted.
"""

import re
from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from metier.prompts.texts import load_text

type Family = Literal["claude", "gpt", "gemini", "open", ""]
"""The vendor whose prompting guide applies; empty without a model."""

FILE_TOOLS = frozenset({"Read", "Write", "Edit", "Glob", "Grep", "Bash"})
CHANGING_TOOLS = frozenset({"Write", "Edit", "Bash"})
"""Tools that change something: a run with one of them gets the planning tool."""

# Not `gpt-oss`, `gpt-neo` and `gpt-j`, which are open models.
_FAMILIES: tuple[tuple[Family, re.Pattern[str]], ...] = (
    ("claude", re.compile(r"claude", re.IGNORECASE)),
    ("gemini", re.compile(r"gemini", re.IGNORECASE)),
    ("gpt", re.compile(r"gpt-(?!oss|neo|j\b)|codex|(?:^|/)o[1-9](?:-|$)", re.IGNORECASE)),
)
_OF_PROVIDER: dict[str, Family] = {"anthropic": "claude", "gemini": "gemini", "offline": ""}


class Subjects(Struct, frozen=True, kw_only=True):
    """The abilities of a run that need instructions."""

    tools: Collection[str] = ()
    has_skills: bool = False
    has_partners: bool = False

    @property
    def can_plan(self) -> bool:
        return not CHANGING_TOOLS.isdisjoint(self.tools)


def get_family(provider: str, model: str) -> Family:
    """Determine the family from the model's name, or else from its provider. The default is `open`."""
    if provider == "offline":
        return ""
    for family, pattern in _FAMILIES:
        if pattern.search(model):
            return family
    return _OF_PROVIDER.get(provider, "open")


def build_operating(subjects: Subjects, family: Family) -> str:
    names = [
        "operating/metier",
        "operating/work",
        *(["operating/files"] if set(subjects.tools) >= FILE_TOOLS else []),
        *(["operating/skills"] if subjects.has_skills else []),
        *(["operating/partners"] if subjects.has_partners else []),
        *([f"family/{family}"] if family else []),
    ]
    return "\n\n".join(load_text(name) for name in names)
