"""Does a script know `--json`? By its help where that was read, else by its source. Reads files; runs nothing.

Asking the script itself would run its code once more, which only `script_help` may do.
"""

import hashlib
import re
from collections.abc import Iterator

from metier.definitions.skills.scripts import Script
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.text.yaml_text import Mapping, Node, Sequence
from metier.errors import ToolFailed
from metier.lazy_regex import lazy_regex
from metier.tools.scripts.metadata import read_script

_FLAG = lazy_regex(r"--json\b")
# Libraries that make an option of a parameter: `def main(json: bool = False)`.
_PARAMETER = lazy_regex(r"\bjson\s*:\s*(?:bool\b|(?:typing\.)?Annotated\[)")
_IMPORT = lazy_regex(r"^\s*(?:from\s+\.?|import\s+)(\w+)", re.MULTILINE)


class HelpTexts:
    """What scripts said of themselves, by path and content hash; kept as long as the tools of a run."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], str] = {}

    def find(self, script: Script) -> str | None:
        return self._texts.get(_identify(script))

    def keep(self, script: Script, text: str) -> None:
        self._texts[_identify(script)] = text


def knows_json(help_text: str | None, script: Script) -> bool:
    """By the help text where there is one, else by the source of the script and of the modules beside it."""
    if help_text is not None:
        return _FLAG.search(help_text) is not None
    return any(_FLAG.search(text) or _PARAMETER.search(text) for text in _list_sources(script))


def is_declared_read(skill: SkillDefinition) -> bool:
    """Its `side_effects` say that there are none: its scripts may be run twice."""
    entry = skill.contract.find("side_effects")
    if entry is None and (below := skill.contract.find("contract")) is not None and isinstance(below.value, Mapping):
        entry = below.value.find("side_effects")
    return entry is not None and isinstance(entry.value, Mapping) and _is_empty(entry.value)


def _is_empty(effects: Mapping) -> bool:
    kinds = effects.find("kinds")
    return kinds is not None and _has_no_items(kinds.value)


def _has_no_items(node: Node) -> bool:
    return isinstance(node, Sequence) and not node.items


def _list_sources(script: Script) -> Iterator[str]:
    own = read_script(script.path).decode("utf-8", "replace")
    yield own
    for name in dict.fromkeys(_IMPORT.findall(own)):
        beside = script.path.parent / f"{name}.py"
        if beside.is_file():
            try:
                yield read_script(beside).decode("utf-8", "replace")
            except ToolFailed:
                continue


def _identify(script: Script) -> tuple[str, str]:
    return str(script.path), hashlib.sha256(read_script(script.path)).hexdigest()
