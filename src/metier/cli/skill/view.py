"""Skill packages as text for a terminal. Authors' texts are shown without control characters."""

from metier.cli.shared.output import printable
from metier.definitions.skills.scripts import ReferenceFile
from metier.skills.capabilities_report import CapabilityReport, list_capabilities
from metier.skills.install.installed import RegistryEntry
from metier.skills.install.operations import Proposal
from metier.skills.install.review import Verification
from metier.skills.source import FolderSource

_TITLES = {
    "scripts": "Scripts",
    "toolsets": "Toolsets (code inside Metier)",
    "capability": "Capability (code inside Metier)",
    "other_code": "Other code",
    "binaries": "Binaries",
    "allowed_tools": "Tools allowed without asking",
    "environment": "Environment variables it gets",
    "environment_read": "Environment variables it reads",
    "dependencies": "Packages it installs",
    "network": "Possible network access",
    "hosts": "Hosts mentioned",
    "hidden_characters": "HIDDEN CHARACTERS",
    "large_file_pointers": "Git LFS pointers (content not fetched)",
}
_SHOWN = 12


def safe(text: str) -> str:
    """Return an author's text on one line, with control and invisible characters escaped."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")


def render_proposal(proposal: Proposal) -> list[str]:
    """Render what the user should read before confirming."""
    lines = [
        f"Skill {safe(proposal.name)}: {safe(proposal.definition.description)}",
        f"  From: {safe(proposal.source.describe())}",
        *_render_pin(proposal),
        f"  Size: {proposal.report.files} files, {proposal.report.bytes} bytes",
        *render_report(proposal.report),
        *(f"  warning: {warning}" for warning in proposal.warnings),
        *(f"  {safe(problem.render())}" for problem in proposal.problems),
    ]
    if proposal.previous is not None:
        lines += _render_difference(proposal)
    return lines


def render_report(report: CapabilityReport) -> list[str]:
    return [f"  {_TITLES[field]}: {_join(words)}" for field, words in list_capabilities(report).items() if words] or [
        "  Instructions only: no code, no tools, no environment"
    ]


def render_reference(file: ReferenceFile) -> str:
    title = f"{safe(file.title)}, " if file.title else ""
    return f"{safe(file.path)} ({title}{file.bytes} bytes)"


def reference_as_json(file: ReferenceFile) -> dict[str, object]:
    return {"path": file.path, "title": file.title, "bytes": file.bytes}


def render_trust(*, is_trusted: bool, was_trusted: bool) -> str:
    if is_trusted:
        return "trusted"
    return "changed since it was trusted" if was_trusted else "not trusted"


def render_verification(verification: Verification) -> list[str]:
    trust = "trusted" if verification.trusted else "not trusted"
    reason = f": {safe(verification.reason)}" if verification.reason else ""
    return [
        f"{safe(verification.name)}: {verification.condition}, {trust}{reason}",
        *(f"  + {safe(name)}" for name in verification.added),
        *(f"  ~ {safe(name)}" for name in verification.changed),
        *(f"  - {safe(name)}" for name in verification.removed),
    ]


def render_origin(entry: RegistryEntry | None) -> str:
    """Render the origin, such as `address @ branch main, commit 0123456789ab`."""
    if entry is None:
        return ""
    if entry.git_url is None:
        return safe(entry.served_at or entry.source_path or entry.installed_path)
    named = f"tag {entry.tag}" if entry.tag else f"branch {entry.branch}" if entry.branch else "pinned"
    subdir = f"#{entry.subdir}" if entry.subdir else ""
    return safe(f"{entry.git_url}{subdir} @ {named}, commit {(entry.commit_sha or '')[:12]}")


def _render_pin(proposal: Proposal) -> list[str]:
    if proposal.ref is None or isinstance(proposal.source, FolderSource):
        return [f"  Tree: {proposal.digest.tree}"]
    ref = proposal.ref
    named = f" (tag {ref.tag})" if ref.tag else f" (branch {ref.branch})" if ref.branch else ""
    return [f"  Commit: {ref.commit}{safe(named)}", f"  Tree: {proposal.digest.tree}"]


def _render_difference(proposal: Proposal) -> list[str]:
    previous, diff = proposal.previous, proposal.diff
    lines: list[str] = []
    if previous is not None and proposal.ref is not None:
        lines.append(f"  Change: {previous.commit_sha or 'nothing'} -> {proposal.ref.commit}")
    if diff is not None:
        for sign, fields in (("+", diff.added), ("-", diff.removed)):
            lines += [f"  {sign} {_TITLES[field]}: {_join(words)}" for field, words in fields.items()]
        counts = (("added", diff.files_added), ("changed", diff.files_changed), ("removed", diff.files_removed))
        lines += [f"  Files {word}: {_join(names)}" for word, names in counts if names]
    if proposal.local_changes:
        lines.append(f"  warning: This discards local changes: {_join(proposal.local_changes)}")
    return lines


def _join(words: tuple[str, ...]) -> str:
    more = f", and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(safe(word) for word in words[:_SHOWN]) + more
