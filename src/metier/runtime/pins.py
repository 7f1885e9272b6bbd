"""What a run is pinned to: the bytes of its definitions and settings. A resumed run uses those, whatever changed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from metier.definitions.skill import parse_skill
from metier.runtime.place import Place
from metier.settings.model import Settings
from metier.skills.package import SkillPackage
from metier.store.base import Store

MOST_KEPT = 200
"""Of larger catalogs only the hashes are pinned; what a model was shown is kept with the run anyway."""
SETTINGS = "settings"
POLICY = "policy"
PINNED_SECTIONS = ("model", "runtime", "skills", "shell")
"""What a run does, and how freely; not `logging` and `store`."""


class PinnedSkills(NamedTuple):
    packages: tuple[SkillPackage, ...]
    changed: tuple[str, ...]
    """Ids of definitions whose file is no longer what the run began with."""


class PinnedPolicy(NamedTuple):
    text: bytes
    changed: tuple[str, ...] = ()


async def pin(
    packages: Sequence[SkillPackage], settings: Settings, store: Store, *, policy: bytes = b""
) -> dict[str, str]:
    """Definition id → digest. The bytes are in the store under that digest."""
    pins = {
        SETTINGS: await store.put_blob(settings.model_dump_json().encode()),
        POLICY: await store.put_blob(policy),
    }
    for package in packages:
        data = package.definition.file.read_bytes()
        keep = len(packages) <= MOST_KEPT
        pins[_id(package)] = await store.put_blob(data) if keep else hashlib.sha256(data).hexdigest()
    return pins


async def use_pinned(packages: Sequence[SkillPackage], pins: Mapping[str, str], store: Store) -> PinnedSkills:
    """The packages as the run knew them: definitions that changed are taken from the store."""
    result: list[SkillPackage] = []
    changed: list[str] = []
    for package in packages:
        digest = pins.get(_id(package), "")
        current = hashlib.sha256(package.definition.file.read_bytes()).hexdigest()
        if not digest or digest == current or len(pins) > MOST_KEPT:
            result.append(package)
            continue
        changed.append(_id(package))
        data = await store.get_blob(digest)
        reading = parse_skill(data, file=package.definition.file, id=package.definition.id)
        result.append(replace(package, definition=reading.skill) if reading.skill else package)
    return PinnedSkills(tuple(result), tuple(changed))


async def use_pinned_policy(current: bytes, pins: Mapping[str, str], store: Store) -> PinnedPolicy:
    """The host's rules as the run knew them."""
    digest = pins.get(POLICY, "")
    if not digest or digest == hashlib.sha256(current).hexdigest():
        return PinnedPolicy(current)
    return PinnedPolicy(await store.get_blob(digest), (POLICY,))


async def use_pinned_settings(place: Place, pins: Mapping[str, str], store: Store) -> Place:
    """The same place, with what the run was told to do; where it is written down is up to whoever resumes it."""
    if SETTINGS not in pins:
        return place
    pinned = Settings.model_validate_json(await store.get_blob(pins[SETTINGS]))
    sections = {section: getattr(pinned, section) for section in PINNED_SECTIONS}
    return replace(place, settings=place.settings.model_copy(update=sections))


def _id(package: SkillPackage) -> str:
    return f"skill:{package.definition.name}"
