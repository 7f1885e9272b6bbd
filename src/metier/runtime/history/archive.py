"""The archive of a run: one file with its journal, blobs, record and event log, which can be replayed without a key.

Its child runs are in the same file, under `children/`. Blobs that runs share are stored once.

The file is a zip file without compression, so that the same run gives the same bytes on every machine. `manifest.json`
has the hashes of all members and of itself, so a modified file is rejected. This is not a signature: anyone who can
write the file can also create a different one.
"""

import errno
import gzip
import hashlib
import json
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field, ValidationError

from metier.engine.entries.entry import Entry, parse_entry, render_entry
from metier.engine.entries.run import RunStarted
from metier.engine.state.fold import fold
from metier.engine.state.phases import IllegalTransition
from metier.engine.state.run_state import RunState
from metier.errors import ArchiveRefused
from metier.values import Value

FORMAT = "metier-run"
VERSION = 1
MANIFEST, JOURNAL, RECORD, EVENTS, BLOBS = "manifest.json", "journal.jsonl", "run.json", "events.jsonl", "blobs/"
MAX_BYTES = 512 * 1024 * 1024
"""Maximum unpacked size of an archive."""
COMPRESSED = ".gz"
CHILDREN = "children/"
# The ID becomes the name of a folder, so it has no slash and doesn't start with a dot.
_RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,120}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# The earliest time that a zip file can contain.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Manifest(Value):
    """The manifest of an archive."""

    format: str = FORMAT
    version: int = VERSION
    run_id: str
    redacted: bool
    """True if its texts were redacted."""
    members: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each other member by name."""
    checksum: str = ""
    """SHA-256 of this manifest without this field."""

    def sign(self) -> "Manifest":
        return self.model_copy(update={"checksum": self._digest()})

    @property
    def is_whole(self) -> bool:
        return self.checksum == self._digest()

    def _digest(self) -> str:
        words = self.model_dump(mode="json", exclude={"checksum"})
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


class Archive(Struct, frozen=True, kw_only=True):
    """A run in memory, as written to and read from a file."""

    run_id: str
    redacted: bool
    entries: tuple[Entry, ...]
    blobs: Mapping[str, bytes]
    record: bytes = b""
    events: bytes = b""
    children: tuple["Archive", ...] = ()
    """All descendants of the run. In an archive read from a file, they share its blobs."""

    @property
    def started(self) -> RunStarted:
        first = self.entries[0]
        assert isinstance(first, RunStarted), "checked when the archive was read"
        return first

    def fold(self) -> RunState:
        return fold(self.run_id, self.entries)


def render_archive(archive: Archive) -> bytes:
    """Render the file. The same run always gives the same bytes."""
    members = _list_members(archive)
    blobs = dict(archive.blobs)
    for child in archive.children:
        members |= {f"{CHILDREN}{child.run_id}/{name}": data for name, data in _list_members(child).items()}
        blobs |= child.blobs
    members |= {f"{BLOBS}{digest}": data for digest, data in sorted(blobs.items())}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    manifest = Manifest(run_id=archive.run_id, redacted=archive.redacted, members=digests).sign()
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        file.writestr(_member(MANIFEST), manifest.model_dump_json(indent=2) + "\n")
        for name, data in members.items():
            file.writestr(_member(name), data)
    return buffer.getvalue()


def load_archive(path: Path) -> Archive:
    """Read a file and check all of it; a `.gz` file is decompressed first. Raises `ArchiveRefused`."""
    try:
        with _open(path) as data, zipfile.ZipFile(data) as file:
            members = _read_members(file, path)
    # `zipfile` raises any of these for a damaged or encrypted file.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error) as error:
        raise _refuse(path, "it is not a zip file, or it is cut off or damaged") from error
    except OSError as error:
        raise _refuse(path, f"it cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    manifest = _check_manifest(members, path)
    blobs = _read_blobs(members, path)
    archive = _build(manifest.run_id, members, blobs, redacted=manifest.redacted, path=path)
    return replace(archive, children=_read_children(archive, members, path))


def _open(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        raise OSError(
            errno.EINVAL, "It is not a regular file"
        )  # reading a pipe would block, and a device may never end
    if path.suffix != COMPRESSED:
        return path.open("rb")
    with gzip.open(path) as stream:
        # Bounded, because a small compressed file can expand to any size.
        return BytesIO(stream.read(MAX_BYTES + 1))


def _list_members(archive: Archive) -> dict[str, bytes]:
    return {
        JOURNAL: b"".join(render_entry(entry) + b"\n" for entry in archive.entries),
        RECORD: archive.record,
        EVENTS: archive.events,
    }


def _build(
    run_id: str, members: Mapping[str, bytes], blobs: Mapping[str, bytes], *, redacted: bool, path: Path
) -> Archive:
    """Build one run and fold its journal to check it."""
    archive = Archive(
        run_id=run_id,
        redacted=redacted,
        entries=_read_journal(members.get(JOURNAL, b""), path),
        blobs=blobs,
        record=members.get(RECORD, b""),
        events=members.get(EVENTS, b""),
    )
    try:
        archive.fold()
    except IllegalTransition as error:
        raise _refuse(path, f"its journal makes no sense: {error}") from error
    return archive


def _read_children(archive: Archive, members: Mapping[str, bytes], path: Path) -> tuple[Archive, ...]:
    """Read the descendants. Raises `ArchiveRefused` for a run whose parent is not in the file."""
    below: dict[str, dict[str, bytes]] = {}
    for name, data in members.items():
        if name.startswith(CHILDREN):
            run_id, _, member = name.removeprefix(CHILDREN).partition("/")
            below.setdefault(run_id, {})[member] = data
    children: list[Archive] = []
    for run_id, own in below.items():
        if not _RUN_ID.fullmatch(run_id):
            raise _refuse(path, f"{run_id!r} is not the id of a run")
        children.append(_build(run_id, own, archive.blobs, redacted=archive.redacted, path=path))
    _check_parents(archive, children, path)
    return tuple(children)


def _check_parents(archive: Archive, children: Sequence[Archive], path: Path) -> None:
    """Check that every run descends from the archive's run, without a cycle."""
    below: dict[str, list[str]] = {}
    for child in children:
        below.setdefault(child.started.parent_run_id, []).append(child.run_id)
    left = {child.run_id for child in children}
    if archive.run_id in left or archive.started.parent_run_id in {archive.run_id, *left}:
        raise _refuse(path, f"run {archive.run_id!r} in it works for itself")
    waiting = [archive.run_id]
    while waiting:
        found = below.get(waiting.pop(), [])
        left.difference_update(found)
        waiting += found
    if left:
        raise _refuse(path, f"run {min(left)!r} in it works for none of the others")


def list_digests(entries: Sequence[Entry]) -> tuple[str, ...]:
    """List everything in a journal that may be the digest of a blob."""
    # By their form: pins, results, media and disclosed pieces name blobs in different fields.
    found = (match for entry in entries for match in _DIGEST.findall(render_entry(entry).decode()))
    return tuple(dict.fromkeys(found))


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, date_time=_EPOCH)
    # Fixed time, mode and system (3 is Unix), so that the same run gives the same bytes on every machine.
    member.external_attr = 0o600 << 16
    member.create_system = 3
    return member


def _read_members(file: zipfile.ZipFile, path: Path) -> dict[str, bytes]:
    """Read the members into memory. Nothing is extracted to a path from the file."""
    names = file.namelist()
    # Readers of zip files disagree about which of two equal names counts.
    if len(set(names)) != len(names):
        raise _refuse(path, "a member is in it twice")
    if file.comment or any(_find_oddity(member) for member in file.infolist()):
        raise _refuse(path, "a member is no plain file, or something is hidden beside the members")
    # Members are stored without compression, so they have these sizes in memory too.
    if sum(member.file_size for member in file.infolist()) > MAX_BYTES:
        raise _refuse(path, f"it holds more than {MAX_BYTES // 1024 // 1024} MB")
    return {name: file.read(name) for name in names}


def _find_oddity(member: zipfile.ZipInfo) -> bool:
    """Return True for a member that no export writes: a folder, link or device, compression, extra fields."""
    # Readers of zip files skip comments and extra fields, so no hash would cover what is in them.
    is_plain = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
    is_stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
    return member.is_dir() or not (is_plain and is_stored) or bool(member.extra or member.comment)


def _check_manifest(members: dict[str, bytes], path: Path) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(members.pop(MANIFEST, b""))
    except ValidationError as error:
        raise _refuse(path, "it has no manifest that can be read") from error
    if manifest.format != FORMAT or manifest.version != VERSION:
        raise _refuse(path, f"it has the format {manifest.format!r} in version {manifest.version}")
    if not manifest.is_whole:
        raise _refuse(path, "its manifest was changed")
    if not _RUN_ID.fullmatch(manifest.run_id):
        raise _refuse(path, f"{manifest.run_id!r} is not the id of a run")
    if manifest.members.keys() != members.keys():
        raise _refuse(path, "members were added or removed")
    for name, data in members.items():
        if not _is_known(name):
            raise _refuse(path, f"{name!r} is no part of a run")
        if hashlib.sha256(data).hexdigest() != manifest.members[name]:
            raise _refuse(path, f"{name!r} was changed")
    return manifest


def _is_known(name: str) -> bool:
    """Return True for a file of the run or a descendant, and for a blob named by its digest."""
    if name.startswith(BLOBS):
        return _DIGEST.fullmatch(name.removeprefix(BLOBS)) is not None
    # `-` is no valid ID and marks the files of the run itself.
    run_id, _, own = name.removeprefix(CHILDREN).partition("/") if name.startswith(CHILDREN) else ("-", "", name)
    return own in (JOURNAL, RECORD, EVENTS) and (run_id == "-" or _RUN_ID.fullmatch(run_id) is not None)


def _read_journal(data: bytes, path: Path) -> tuple[Entry, ...]:
    try:
        entries = tuple(parse_entry(line) for line in data.splitlines())
    except ValueError as error:
        raise _refuse(path, "its journal was written by a newer version of Metier, or not by Metier") from error
    if not entries or not isinstance(entries[0], RunStarted):
        raise _refuse(path, "its journal has no beginning")
    return entries


def _read_blobs(members: Mapping[str, bytes], path: Path) -> dict[str, bytes]:
    blobs = {name.removeprefix(BLOBS): data for name, data in members.items() if name.startswith(BLOBS)}
    for digest, data in blobs.items():
        if hashlib.sha256(data).hexdigest() != digest:
            raise _refuse(path, f"the blob {digest!r} holds other bytes")
    return blobs


def _refuse(path: Path, why: str) -> ArchiveRefused:
    return ArchiveRefused(f"'{path}' cannot be used: {why}", hint="Export the run again with `agent runs export`")
