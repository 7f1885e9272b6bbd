"""Workspace trust: the permissions that the files of a folder have before and after the user trusts it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from metier.approval.rules import Scope
from metier.approval.scopes import ScopeReader
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.definitions.schedule import FILE_NAME as SCHEDULES_FILE
from metier.definitions.schedule import load_schedules
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.runtime.host import Host, shorten_path
from metier.runtime.workspace.hooks import digest_workspace_hooks, list_hook_lines
from metier.runtime.workspace.lookup import list_definitions
from metier.runtime.workspace.policy import DEFINITIONS, HOST_FILE
from metier.runtime.workspace.skill_catalog import get_all_skills
from metier.skills.skill_trust import TRUSTED_UNREAD
from metier.skills.workspace_trust import Part, TrustRecord, digest_bytes, record_trust


def get_withheld(host: Host, policy: bytes) -> frozenset[str]:
    """Return the markers of workspace files whose rules must not allow anything; see `PolicySources.withheld`."""
    voices = {
        # By its content: after a change, the rules of a trusted folder can still deny, but allow nothing.
        HOST_FILE: not host.trust.counts("policy", digest_bytes(policy)),
        DEFINITIONS: not host.trust.is_trusted,
    }
    return frozenset(voice for voice, is_withheld in voices.items() if is_withheld)


def list_permissions(host: Host, settings: Sequence[str]) -> list[str]:
    """Describe what trusting the folder permits: settings by key, rules that allow calls, code."""
    found = [f"agent.yaml: {key}" for key in settings]
    reader = ScopeReader(root=str(host.workspace))
    policy = reader.read_policy(read_policy_file(host.workspace).decode("utf-8", "replace"), file=POLICY_FILE)
    found += [f"{POLICY_FILE}: {line}" for line in _list_allows(policy)]
    found += list_hook_lines(host)
    files = [Path(agent.path) for agent in list_definitions(host.workspace, "agent").values()]
    for task in list_definitions(host.workspace, "task").values():
        # All steps, because each can have rules of its own.
        files += sorted(Path(task.path).parent.glob("*.md"))
    found += [
        f"{shorten_path(file, host.workspace)}: {line}"
        for file in files
        for line in _list_allows(reader.read_definition(file, within=host.workspace))
    ]
    for schedule in load_schedules(host.workspace, WORKSPACE_FOLDERS).schedules:
        found.append(f"{SCHEDULES_FILE}: starts {schedule.task or schedule.prompt!r} by itself ({schedule.timing})")
    for package in get_all_skills(host).packages:
        if package.source in TRUSTED_UNREAD and _has_code(package.folder):
            found.append(f"{shorten_path(package.folder, host.workspace)}: code of skill {package.definition.name!r}")
    return found


def trust_workspace(host: Host, *, words: str, origin: str) -> TrustRecord:
    """Trust the current content of the folder. `words` is the digest of its settings. Raises `OSError`."""
    digests: Mapping[Part, str] = {
        "settings": words,
        "policy": digest_bytes(read_policy_file(host.workspace)),
        "hooks": digest_workspace_hooks(host),
        "schedules": digest_bytes(load_schedules(host.workspace, WORKSPACE_FOLDERS).content),
    }
    return record_trust(Path(host.workspace), home=host.home, origin=origin, digests=digests, now=host.clock.now())


def _list_allows(scope: Scope) -> Iterator[str]:
    for rules in (scope.tools, scope.tasks):
        if rules.default == "allow":
            yield "allows by default"
        yield from (f"allows {rule.subject} (line {rule.line})" for rule in rules.rules if rule.decision == "allow")


def _has_code(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("scripts", "toolsets", "impl.py"))
