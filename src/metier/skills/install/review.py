"""Trusts, distrusts and verifies skills that are already on this machine."""

from typing import Literal

from metier.definitions.names import canonical_name
from metier.errors import SkillError, SkillNotFound, UsageError
from metier.ids import Clock
from metier.skills.install.installed import Registry, RegistryEntry, SkillHome, save_registry
from metier.skills.install.placement import open_registry
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import TreeDigest, digest_tree
from metier.values import Value

type Condition = Literal["intact", "changed", "missing", "unreadable"]


class Verification(Value):
    """The state of an installed skill compared with the registry."""

    name: str
    condition: Condition
    trusted: bool
    """True if the user trusted exactly the current bytes."""
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reason: str = ""


def trust_package(home: SkillHome, package: SkillPackage, *, digest: TreeDigest, clock: Clock) -> RegistryEntry:
    """Trust the reviewed bytes. Raises `SkillError` if they changed since the review."""
    _check_reviewable(package)
    with open_registry(home) as registry:
        if digest_tree(package.folder).tree != digest.tree:
            raise SkillError(f"Skill {package.definition.name!r} changed while it was reviewed", hint="Review it again")
        known = _find_entry(home, registry, package) or _by_hand(package, clock)
        entry = known.model_copy(update={"trusted": True, "trusted_digest": digest.tree})
        save_registry(home, registry.with_entry(entry))
    return entry


def untrust_package(home: SkillHome, package: SkillPackage) -> None:
    _check_reviewable(package)
    with open_registry(home) as registry:
        entry = _find_entry(home, registry, package)
        if entry is None:
            return
        if entry.is_installed:
            changed = registry.with_entry(entry.model_copy(update={"trusted": False, "trusted_digest": None}))
        else:
            # The entry of a skill that was added by hand exists only for its trust.
            changed = registry.without(entry.name_canonical)
        save_registry(home, changed)


def verify_entry(entry: RegistryEntry, home: SkillHome) -> Verification:
    """Compare every byte of an installed skill with the registry."""
    folder = home.folder_of(entry)
    if not folder.is_dir():
        return Verification(name=entry.name, condition="missing", trusted=False, reason="The folder is gone")
    try:
        digest = digest_tree(folder)
    except SkillError as error:
        return Verification(name=entry.name, condition="unreadable", trusted=False, reason=error.message)
    before, after = entry.files, digest.files
    return Verification(
        name=entry.name,
        condition="intact" if digest.tree == entry.tree else "changed",
        trusted=entry.trusted and digest.tree == entry.trusted_digest,
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name])),
        removed=tuple(sorted(before.keys() - after.keys())),
    )


def get_entry(registry: Registry, name: str) -> RegistryEntry:
    entry = registry.find(name)
    if entry is None or not entry.is_installed:
        raise SkillNotFound(
            f"No skill {name!r} was installed by `agent skills add`", hint="Run `agent skills list` to list skills"
        )
    return entry


def _find_entry(home: SkillHome, registry: Registry, package: SkillPackage) -> RegistryEntry | None:
    entry = registry.find(package.definition.name)
    if entry is not None and home.folder_of(entry) != package.folder:
        places = f"{str(home.folder_of(entry))!r}, not in {str(package.folder)!r}"
        raise UsageError(f"Skill {entry.name!r} of the registry is in {places}", hint="Rename one of the two")
    return entry


def _check_reviewable(package: SkillPackage) -> None:
    if package.source not in ("installed", "user"):
        where = "bundled with Metier" if package.source == "bundled" else "part of this workspace"
        raise UsageError(f"Skill {package.definition.name!r} is {where}, and trusted by its location")


def _by_hand(package: SkillPackage, clock: Clock) -> RegistryEntry:
    name = package.definition.name
    return RegistryEntry(
        name=name,
        name_canonical=canonical_name(name),
        installed_path=str(package.folder),
        installed_at=clock.now(),
    )
