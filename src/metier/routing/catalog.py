"""The index of the skills on this machine: bodies are read when no index of exactly these files is kept."""

import hashlib
import json
import re
from pathlib import Path
from typing import Protocol

from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog, CatalogSkill
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, read_skill_file
from metier.definitions.text.front_matter import read_front_matter
from metier.routing.cache import load_index, save_index
from metier.routing.router import RoutingIndex, build_index
from metier.routing.skill import RoutableSkill

MAX_BODY_CHARACTERS = 100_000
"""What is indexed of one body; instructions are never that long, and a data dump says nothing new."""

_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


class DescribedSkill(Protocol):
    """What a skill of the catalog and one that was loaded whole have in common."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...


def open_index(catalog: Catalog, *, cache_folder: Path | None = None) -> RoutingIndex:
    """The index of a catalog, kept in `cache_folder` by the fingerprint of its files."""
    if cache_folder is None:
        return build_index(load_routable(skill) for skill in catalog.skills)
    fingerprint = find_fingerprint(catalog)
    index = load_index(cache_folder, fingerprint)
    if index is None:
        index = build_index(load_routable(skill) for skill in catalog.skills)
        save_index(cache_folder, fingerprint, index)
    return index


def load_routable(skill: CatalogSkill) -> RoutableSkill:
    """The skill with its body; a body that cannot be read any more is empty."""
    data = read_skill_file(skill.file, limit=MAX_FILE_BYTES, within=skill.source.within or skill.source.folder)
    body = "" if isinstance(data, Problem) else read_front_matter(data).body
    return build_routable(skill, body=body)


def build_routable(skill: DescribedSkill, *, body: str) -> RoutableSkill:
    """A skill as it is ranked, for commands and for runs: code blocks and what goes beyond the limit are left out."""
    return RoutableSkill(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        body=_CODE_BLOCK.sub("\n", body[:MAX_BODY_CHARACTERS]),
    )


def find_fingerprint(catalog: Catalog) -> str:
    """A hash of what the index is made from: fields of the front matter, and size and times of every file."""
    digest = hashlib.blake2b(digest_size=16)
    for skill in catalog.skills:
        fields = [skill.path, skill.name, skill.description, skill.tags, _stamp(skill.file)]
        digest.update(json.dumps(fields).encode())
    return digest.hexdigest()


def _stamp(file: Path) -> list[int]:
    try:
        stat = file.stat()
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
