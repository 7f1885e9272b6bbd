"""Pins of a run: the bytes of its definitions, instructions, tools and settings, and the hash of its code.

A resumed run uses its pins even if files changed since, and a replay needs nothing else. If code changed, the run asks
before it continues; see `questions.answers.check_changed_code`.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from anyio.to_thread import run_sync
from msgspec import json
from msgspec.structs import replace
from pydantic import TypeAdapter

from metier.approval.rules import OutsideScripts
from metier.definitions.agent import FILE_NAME as AGENT_FILE
from metier.definitions.names import SKILL_PIN as SKILL
from metier.definitions.policy_file import read_policy_file
from metier.definitions.skills.skill import parse_skill
from metier.engine.delegation import Partners
from metier.engine.entries.run import RunStarted
from metier.engine.services import Instructions, Services
from metier.errors import SkillError, UsageError
from metier.ids import measure_ms
from metier.messages import MediaPart
from metier.runtime.host import Host
from metier.runtime.workspace.agents import ResolvedAgent, read_definition_file, restore_agent
from metier.runtime.workspace.instructions import PROJECT
from metier.runtime.workspace.lookup import get_definition
from metier.runtime.workspace.policy import has_rules, list_outside_scripts
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.skill_catalog import get_skills
from metier.runtime.workspace.tasks import TASK, pin_task
from metier.runtime.workspace.trust import get_withheld
from metier.settings.sections import Settings
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import digest_files, is_trusted
from metier.store.base import Store
from metier.store.failures import BlobUnknown
from metier.tools.base import ToolInfo
from metier.values import WHEN_USED

MAX_STORED_SKILLS = 200
"""Maximum size of a catalog whose skills are stored. For larger ones, only hashes are pinned."""
SETTINGS = "settings"
INSTRUCTIONS = "instructions"
TOOLS = "tools"
POLICY = "policy"
TRUST = "trust"
HOST = "host"
"""Pin of the settings without the agent's own; only if they differ."""
MEDIA = "media:"
"""Prefix of pins of pictures and documents of earlier turns that the run shows to its model."""
PARTNERS = "partners"
OUTSIDE = "outside_scripts"
"""Pin of scripts outside of their skill's folder; missing in runs from before 0.3."""
UNREADABLE = "unreadable"
CODE = "code:"
"""Prefix of the hash of all files of a skill. Their bytes are not stored, because code runs from its folder."""
AGENT = "agent:"
SKILL_IDS = "skill_ids"
"""Pin of skills whose ID is not their name: name → ID."""

_TOOLS: TypeAdapter[tuple[ToolInfo, ...]] = TypeAdapter(tuple[ToolInfo, ...], config=WHEN_USED)
PINNED_SECTIONS = ("model", "runtime", "skills", "shell", "sandbox", "mcp")
"""Sections that determine what a run does and may do. `logging` and `store` stay those of the resuming process."""


class PinnedSkills(NamedTuple):
    packages: tuple[SkillPackage, ...]
    changed: tuple[str, ...]
    """IDs of definitions whose file changed since the run started."""


class PinnedPolicy(NamedTuple):
    text: bytes
    changed: tuple[str, ...] = ()


async def pin(services: Services, run: PreparedRun) -> dict[str, str]:
    """Store definitions and return their pins: definition ID → digest of the stored bytes."""
    store, agent = services.store, run.agent
    settings = agent.host.settings
    policy = read_policy_file(agent.host.workspace)
    packages = tuple(services.skill_index.packages.values())
    trusted = tuple(
        sorted(package.definition.name for package in packages if has_rules(package) and is_trusted(package))
    )
    pins = {
        **await pin_settings(settings, run.host.settings if run.host is not None else settings, store),
        INSTRUCTIONS: await store.put_blob(json.encode(services.instructions)),
        TOOLS: await store.put_blob(_TOOLS.dump_json(services.tools.infos())),
        POLICY: await store.put_blob(policy),
        TRUST: await store.put_blob(json.encode((*trusted, *sorted(get_withheld(agent.host, policy))))),
    }
    # Pin the pictures of earlier turns, so that their blobs are stored as long as this run.
    told = (part for message in services.instructions.conversation for part in message.parts)
    pins |= {f"{MEDIA}{part.digest[:16]}": part.digest for part in told if isinstance(part, MediaPart)}
    pins |= {f"{PROJECT}{path}": digest for path, digest in services.instructions.project_files.items()}
    if agent.id:
        pins[f"{AGENT}{agent.id}"] = await store.put_blob(agent.data)
    if services.partners != Partners():
        pins[PARTNERS] = await store.put_blob(json.encode(services.partners))
    if run.is_planned and run.task is not None and not any(name.startswith(TASK) for name in run.inherited):
        pins |= await pin_task(run.task, store)
    if outside := list_outside_scripts(packages, agent.host.workspace):
        pins[OUTSIDE] = await store.put_blob(json.encode(dict(outside)))
    ids = {each.name: each.id for package in packages if (each := package.definition).id != each.name}
    if ids:
        pins[SKILL_IDS] = await store.put_blob(json.encode(ids))
    for package in packages:
        data = package.definition.data
        keep = len(packages) <= MAX_STORED_SKILLS
        pins[_id(package)] = await store.put_blob(data) if keep else hashlib.sha256(data).hexdigest()
    code = await run_sync(digest_code, packages) if packages else {}
    return {**run.inherited, **pins, **code}


async def pin_settings(settings: Settings, host: Settings, store: Store) -> dict[str, str]:
    """Pin the settings of a run, and those without its agent's own if they differ."""
    pins = {SETTINGS: await store.put_blob(settings.model_dump_json().encode())}
    return pins if host == settings else {**pins, HOST: await store.put_blob(host.model_dump_json().encode())}


def digest_code(packages: Iterable[SkillPackage], pins: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the hash of all files of each skill by pin. A pinned `SKILL.md` counts instead of the current one."""
    is_kept = sum(name.startswith(SKILL) for name in pins) <= MAX_STORED_SKILLS
    return {
        f"{CODE}{package.definition.name}": _digest_code(package, pins.get(_id(package), "") if is_kept else "")
        for package in packages
    }


def _digest_code(package: SkillPackage, pinned: str) -> str:
    try:
        return digest_files(package.folder, instead={package.definition.file.name: pinned} if pinned else {})
    # No error: it differs from every hash, so a resume asks before it uses the folder.
    except (SkillError, OSError):
        return UNREADABLE


async def use_pinned(packages: Sequence[SkillPackage], pins: Mapping[str, str], store: Store) -> PinnedSkills:
    """Return the packages with their pinned definitions, read from the store if the file changed."""
    result: list[SkillPackage] = []
    changed: list[str] = []
    for package in packages:
        digest = pins.get(_id(package), "")
        # Of a larger catalog only hashes are pinned, so there are no bytes to restore.
        if not digest or digest == _digest(package) or sum(name.startswith(SKILL) for name in pins) > MAX_STORED_SKILLS:
            result.append(package)
            continue
        changed.append(_id(package))
        data = await store.get_blob(digest)
        reading = parse_skill(data, file=package.definition.file, id=package.definition.id)
        # The name is not in the file: it depends on the other skills and on how this one was installed.
        skill = (
            dataclasses.replace(reading.skill, name=package.definition.name) if reading.skill else package.definition
        )
        result.append(replace(package, definition=skill))
    return PinnedSkills(tuple(result), tuple(changed))


async def use_pinned_policy(current: bytes, pins: Mapping[str, str], store: Store) -> PinnedPolicy:
    """Return the pinned policy of the host; the current one if none is pinned."""
    digest = pins.get(POLICY, "")
    if not digest or digest == hashlib.sha256(current).hexdigest():
        return PinnedPolicy(current)
    return PinnedPolicy(await store.get_blob(digest), (POLICY,))


async def use_pinned_host(host: Host, pins: Mapping[str, str], store: Store) -> Host:
    """Return the host with the settings that the run's agent was resolved with."""
    return await use_pinned_settings(host, {SETTINGS: pins[HOST]} if HOST in pins else pins, store)


async def use_pinned_settings(host: Host, pins: Mapping[str, str], store: Store) -> Host:
    """Return the host with the pinned sections of the settings."""
    if SETTINGS not in pins:
        return host
    pinned = Settings.model_validate_json(await store.get_blob(pins[SETTINGS]))
    sections = {section: getattr(pinned, section) for section in PINNED_SECTIONS}
    return replace(host, settings=host.settings.model_copy(update=sections))


async def use_pinned_agent(host: Host, started: RunStarted, store: Store) -> ResolvedAgent:
    """Return the pinned agent, in a host with the run's settings."""
    name = f"{AGENT}{started.agent}"
    digest = started.pins.get(name, "") if started.agent else ""
    if not digest:
        began = host.clock.monotonic()
        skills = get_skills(host)
        return ResolvedAgent(
            id=started.agent,
            host=host,
            packages=skills.packages,
            problems=skills.problems,
            load_ms=measure_ms(host.clock, began),
        )
    data = await store.get_blob(digest)
    file, current = _get_file(host.workspace, started.agent)
    agent = restore_agent(host, started.agent, data, file=file)
    return agent if current == data else replace(agent, changed=(name,))


def _get_file(workspace: Path, agent_id: str) -> tuple[Path, bytes]:
    """Return the definition's path and content; the expected path and no content if the file is gone."""
    try:
        file = Path(get_definition(workspace, "agent", agent_id).path)
        return file, read_definition_file(file, workspace)
    except (UsageError, OSError):
        return workspace / ".agent/agents" / agent_id / AGENT_FILE, b""


async def _find[T](name: str, pins: Mapping[str, str], store: Store, *, of: type[T]) -> T | None:
    """Decode the bytes of a pin; None without it, as in runs of older versions."""
    digest = pins.get(name)
    return json.decode(await store.get_blob(digest), type=of) if digest else None


async def find_instructions(pins: Mapping[str, str], store: Store) -> Instructions | None:
    return await _find(INSTRUCTIONS, pins, store, of=Instructions)


async def get_partners(pins: Mapping[str, str], store: Store) -> Partners:
    return await _find(PARTNERS, pins, store, of=Partners) or Partners()


async def find_tools(pins: Mapping[str, str], store: Store) -> tuple[ToolInfo, ...]:
    """Return the tools of the run with their descriptions at its start."""
    digest = pins.get(TOOLS)
    return _TOOLS.validate_json(await store.get_blob(digest)) if digest else ()


async def get_policy(pins: Mapping[str, str], store: Store) -> bytes:
    """Return the host's rules; empty for runs of versions without rules."""
    digest = pins.get(POLICY)
    return await store.get_blob(digest) if digest else b""


async def get_outside(pins: Mapping[str, str], store: Store) -> OutsideScripts:
    """Return the scripts outside of their skill's folder that the skills mention."""
    return await _find(OUTSIDE, pins, store, of=dict[str, tuple[str, ...]]) or {}


async def list_trusted(pins: Mapping[str, str], store: Store) -> frozenset[str]:
    """List the skills whose rules may allow something, and the markers of files whose rules may not."""
    return frozenset(await _find(TRUST, pins, store, of=tuple[str, ...]) or ())


async def rebuild_packages(
    pins: Mapping[str, str], found: Iterable[SkillPackage], store: Store
) -> tuple[SkillPackage, ...]:
    """Rebuild the catalog from stored bytes, in its order. `found` supplies skills of catalogs too large to store.

    Raises `BlobUnknown` if neither has the bytes.
    """
    here = {_id(package): package for package in found}
    ids = await _find(SKILL_IDS, pins, store, of=dict[str, str]) or {}
    packages: list[SkillPackage] = []
    for name, digest in pins.items():
        if name.startswith(SKILL):
            here_now = here.get(name)
            if here_now is None or _digest(here_now) != digest:
                here_now = await _rebuild_package(name, digest, store)
                own = here_now.definition
                here_now = replace(here_now, definition=dataclasses.replace(own, id=ids.get(own.name, own.name)))
            packages.append(here_now)
    return tuple(packages)


async def _rebuild_package(name: str, digest: str, store: Store) -> SkillPackage:
    try:
        data = await store.get_blob(digest)
    except BlobUnknown as error:
        raise BlobUnknown(
            f"The bytes of {name!r} that the run used are nowhere to be found",
            hint=f"Catalogs of more than {MAX_STORED_SKILLS} skills are not kept; restore its SKILL.md as it was",
        ) from error
    return restore_package(name, data)


def restore_package(pin: str, data: bytes) -> SkillPackage:
    """Restore a pinned skill from its bytes, with the name that it had in the run."""
    name = pin.removeprefix(SKILL)
    reading = parse_skill(data, file=Path(name) / "SKILL.md", id=name)
    assert reading.skill is not None, "only what could be parsed is pinned"
    return SkillPackage(definition=dataclasses.replace(reading.skill, name=name), folder=Path(name), source="directory")


def _digest(package: SkillPackage) -> str:
    return hashlib.sha256(package.definition.data).hexdigest()


def _id(package: SkillPackage) -> str:
    return f"{SKILL}{package.definition.name}"
