"""What a skill can do once it is trusted: shown to the user before trusting it. Reads every file, runs none."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from metier.dataclass import dataclass
from metier.definitions.skills.scripts import discover_scripts
from metier.definitions.skills.skill import SkillDefinition
from metier.messages import Value
from metier.skills.code_hints import CodeHints, find_hints, find_hosts
from metier.skills.hidden_text import find_hidden
from metier.skills.trust.digest import TreeDigest

_CODE = frozenset({".py", ".sh", ".bash", ".zsh", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".ps1", ".php", ".lua"})
_MACHINE_CODE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\x00asm")
_LARGE_FILE_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_SCANNED_BYTES = 2 * 1024 * 1024


class CapabilityReport(Value):
    """Lists of words, sorted; equal reports mean equal capabilities."""

    scripts: tuple[str, ...] = ()
    toolsets: tuple[str, ...] = ()
    capability: tuple[str, ...] = ()
    """`impl.py` where there is one: code that runs inside Metier."""
    other_code: tuple[str, ...] = ()
    """Code files that are neither a script of the skill nor part of its toolsets."""
    binaries: tuple[str, ...] = ()
    """Machine code."""
    allowed_tools: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Names it may read: declared under `permissions: env:`."""
    environment_read: tuple[str, ...] = ()
    """Names that its code asks for."""
    dependencies: tuple[str, ...] = ()
    """Packages that its scripts have installed when they run."""
    network: tuple[str, ...] = ()
    """`file: module` for what looks like network access."""
    hosts: tuple[str, ...] = ()
    hidden_characters: tuple[str, ...] = ()
    """`file:line: U+200B ZERO WIDTH SPACE`"""
    large_file_pointers: tuple[str, ...] = ()
    """Git LFS pointers; the content they stand for is not fetched."""
    files: int = 0
    bytes: int = 0


class CapabilityDiff(Value):
    """What an update adds and takes away, by field of the report, and which files differ."""

    added: dict[str, tuple[str, ...]]
    removed: dict[str, tuple[str, ...]]
    files_added: tuple[str, ...] = ()
    files_changed: tuple[str, ...] = ()
    files_removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Scan:
    """One file of the package, read once."""

    name: str
    head: bytes
    text: str | None
    """Nothing when the file is not text, or too large to look at."""
    hints: CodeHints

    @property
    def is_code(self) -> bool:
        return PurePosixPath(self.name).suffix.lower() in _CODE or self.head.startswith(b"#!")


def build_report(skill: SkillDefinition, digest: TreeDigest) -> CapabilityReport:
    """Look at every file of the folder that `digest` names."""
    scans = [_scan(skill.folder, name) for name in digest.files]
    scripts = {f"scripts/{script.path.name}" for script in discover_scripts(skill)}
    known = scripts | {"impl.py"} | {_toolset_file(toolset) for toolset in skill.toolsets}
    return CapabilityReport(
        scripts=_sorted(scripts),
        toolsets=_sorted(skill.toolsets),
        capability=("impl.py",) if "impl.py" in digest.files else (),
        other_code=_sorted(scan.name for scan in scans if scan.is_code and scan.name not in known),
        binaries=_sorted(scan.name for scan in scans if scan.head.startswith(_MACHINE_CODE)),
        allowed_tools=_sorted(skill.allowed_tools),
        environment=_sorted(skill.permissions_env),
        environment_read=_sorted(name for scan in scans for name in scan.hints.environment),
        dependencies=_sorted(name for scan in scans for name in scan.hints.dependencies),
        network=_sorted(f"{scan.name}: {module}" for scan in scans for module in scan.hints.network),
        hosts=_sorted(host for scan in scans for host in scan.hints.hosts),
        hidden_characters=tuple(line for scan in scans for line in _hidden_lines(scan)),
        large_file_pointers=_sorted(scan.name for scan in scans if scan.head.startswith(_LARGE_FILE_POINTER)),
        files=len(digest.files),
        bytes=digest.bytes,
    )


def diff_reports(old: CapabilityReport, new: CapabilityReport) -> CapabilityDiff:
    """The capabilities only; see `diff_files` for the files."""
    added: dict[str, tuple[str, ...]] = {}
    removed: dict[str, tuple[str, ...]] = {}
    before, after = list_capabilities(old), list_capabilities(new)
    for field, words in after.items():
        if more := tuple(word for word in words if word not in before[field]):
            added[field] = more
        if less := tuple(word for word in before[field] if word not in words):
            removed[field] = less
    return CapabilityDiff(added=added, removed=removed)


def diff_files(diff: CapabilityDiff, *, old: dict[str, str], new: dict[str, str]) -> CapabilityDiff:
    """The same difference with the names of the files that differ."""
    return diff.model_copy(
        update={
            "files_added": _sorted(new.keys() - old.keys()),
            "files_removed": _sorted(old.keys() - new.keys()),
            "files_changed": _sorted(name for name in old.keys() & new.keys() if old[name] != new[name]),
        }
    )


def list_capabilities(report: CapabilityReport) -> dict[str, tuple[str, ...]]:
    """The lists of the report by name, in its order."""
    return {name: value for name, value in report if isinstance(value, tuple)}


def _scan(folder: Path, name: str) -> _Scan:
    with (folder / name).open("rb") as stream:
        content = stream.read(_MAX_SCANNED_BYTES)
    head = content[:64]
    if b"\0" in content:
        return _Scan(name, head, None, CodeHints())
    text = content.decode("utf-8", "replace")
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _CODE or head.startswith(b"#!"):
        return _Scan(name, head, text, find_hints(text, suffix=suffix))
    return _Scan(name, head, text, CodeHints(hosts=find_hosts(text)))


def _hidden_lines(scan: _Scan) -> list[str]:
    if scan.text is None:
        return []
    return [f"{scan.name}:{found.line}: {found.code_point} {found.name}" for found in find_hidden(scan.text)]


def _toolset_file(toolset: str) -> str:
    return toolset.partition(":")[0].replace(".", "/") + ".py"


def _sorted(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words)))
