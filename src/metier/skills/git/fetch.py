"""Fetch one commit with the real `git` and list what is in it. Nothing is checked out: no hook, filter, submodule or
large-file program of a repository, and no setting of this machine, takes part.

git runs in a session of its own, with a built environment, and cannot ask anything. When the caller is cancelled, or
the time or the size is used up, the whole session is killed.
"""

import base64
import os
import re
from pathlib import Path

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from metier.errors import SkillError, SkillRejected
from metier.skills.git.process import GitSession, Sleep, open_pipe, run_git, start_git
from metier.skills.layout import MORE_FILES, InstallLimits, check_paths
from metier.skills.source import GitSource, check_ref

_FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{7,64}")
"""Meant as a commit, in whole or shortened; never as the name of a branch or tag, which anybody can choose."""
_TARGET = "refs/metier/target"
_NO_SHALLOW = ("dumb http transport does not support shallow", "does not support shallow")
_NOT_OFFERED = ("unadvertised object", "not our ref", "no such remote ref")
_BYTES_PER_ENTRY = 2_000
_TREE_LINE = re.compile(
    rb"(?P<mode>[0-7]{6}) (?P<kind>\w+) (?P<id>[0-9a-f]{40,64}) +(?P<size>\d+|-)\t(?P<path>.*)", re.DOTALL
)


class RemoteRef(Struct, frozen=True, kw_only=True):
    """What a source means at this moment."""

    commit: str
    name: str | None
    """The full name of the ref, e.g. `refs/tags/v1`; nothing for a commit that was given as such."""

    @property
    def branch(self) -> str | None:
        return self._below("refs/heads/")

    @property
    def tag(self) -> str | None:
        return self._below("refs/tags/")

    def _below(self, prefix: str) -> str | None:
        return self.name.removeprefix(prefix) if self.name and self.name.startswith(prefix) else None


class TreeFile(Struct, frozen=True, kw_only=True):
    path: str
    blob: str
    size: int
    is_executable: bool


class Fetched(Struct, frozen=True, kw_only=True):
    """A commit in a bare repository of ours, and the files of the wanted folder in it."""

    session: GitSession
    ref: RemoteRef
    files: tuple[TreeFile, ...]


async def fetch_source(
    source: GitSource, repository: Path, *, limits: InstallLimits, sleep: Sleep = anyio.sleep
) -> Fetched:
    """Fetch into `repository`, which must not exist, and check every name, kind and size before any file is written.

    Raises `SkillError` where it cannot be fetched, `SkillRejected` where it must not be installed.
    """
    session = GitSession(repository=repository, url=source.url, limits=limits, sleep=sleep, secret=_secret(source))
    await run_git(session, "init", "--quiet", "--bare", "--template=", "--", str(repository))
    ref = await _fetch(session, await _resolve(session, source))
    return Fetched(session=session, ref=ref, files=await _list_files(session, ref.commit, source.subdir))


async def write_files(fetched: Fetched, folder: Path) -> None:
    """Write the blobs ourselves: exactly the bytes of the commit, modes 644 and 755."""
    async with start_git(fetched.session, "cat-file", "--batch", has_input=True) as process:
        requests, reader = open_pipe(process.stdin), BufferedByteReceiveStream(open_pipe(process.stdout))
        for file in fetched.files:
            await requests.send(f"{file.blob}\n".encode())
            header = await reader.receive_until(b"\n", 200)
            if header != f"{file.blob} blob {file.size}".encode():
                raise SkillRejected(f"{file.path!r} is not in the repository as its commit says")
            await _write_file(reader, folder / file.path, file)
            await reader.receive_exactly(1)


async def _write_file(reader: BufferedByteReceiveStream, path: Path, file: TreeFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if file.is_executable else 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        left = file.size
        while left:
            chunk = await reader.receive(min(left, 1 << 16))
            stream.write(chunk)
            left -= len(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def _secret(source: GitSource) -> str:
    return base64.b64encode(source.secret.encode()).decode() if source.secret else ""


async def _resolve(session: GitSession, source: GitSource) -> RemoteRef:
    wanted = source.ref
    if wanted is not None and _FULL_COMMIT.fullmatch(wanted.lower()):
        return RemoteRef(commit=wanted.lower(), name=None)
    if wanted is None:
        return await _resolve_default(session)
    check_ref(wanted)
    candidates = [wanted] if wanted.startswith("refs/") else [f"refs/heads/{wanted}", f"refs/tags/{wanted}"]
    patterns = [pattern for name in candidates for pattern in (name, f"{name}^{{}}")]
    listed = await _ls_remote(session, *patterns)
    found = [name for name in candidates if name in listed]
    if len(found) > 1:
        hint = f"Write @refs/tags/{wanted} or @refs/heads/{wanted}"
        raise SkillError(f"{wanted!r} is both a branch and a tag", hint=hint)
    if not found:
        raise _unknown_ref(wanted)
    if _HEXADECIMAL.fullmatch(wanted):
        hint = f"Write all 40 digits of the commit, or @{found[0]} for what has that name"
        raise SkillError(f"{wanted!r} can be a shortened commit, and the repository has {found[0]!r}", hint=hint)
    return RemoteRef(commit=listed.get(f"{found[0]}^{{}}", listed[found[0]]), name=found[0])


def _unknown_ref(wanted: str) -> SkillError:
    if _HEXADECIMAL.fullmatch(wanted):
        hint = "Write all 40 digits of a commit: a shortened one can be imitated"
    else:
        hint = "Name a branch, a tag, or all 40 digits of a commit"
    return SkillError(f"The repository has no branch or tag {wanted!r}", hint=hint)


async def _resolve_default(session: GitSession) -> RemoteRef:
    listed = await _ls_remote(session, "HEAD")
    if "HEAD" not in listed:
        raise SkillError("The repository is empty", hint="Name a branch, a tag or a commit after @")
    branch = listed.get("ref:HEAD")
    return RemoteRef(commit=listed["HEAD"], name=branch or "HEAD")


async def _ls_remote(session: GitSession, *patterns: str) -> dict[str, str]:
    output = await run_git(session, "ls-remote", "--symref", "--", session.url, *patterns, is_remote=True)
    listed: dict[str, str] = {}
    for line in output.decode("utf-8", "replace").splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            listed[f"ref:{name}"] = value.removeprefix("ref: ")
        elif _FULL_COMMIT.fullmatch(value):
            listed[name] = value
    return listed


async def _fetch(session: GitSession, ref: RemoteRef) -> RemoteRef:
    wanted = ref.name or ref.commit
    try:
        await _fetch_refs(session, f"+{wanted}:{_TARGET}", is_shallow=True)
    except SkillError as error:
        trouble = str(error.__cause__)
        if ref.name is None and any(words in trouble for words in _NOT_OFFERED):
            # A server that gives out only the tips of its branches: take everything, the commit may be among it.
            await _fetch_refs(session, "+refs/heads/*:refs/metier/heads/*", "+refs/tags/*:refs/metier/tags/*")
        elif any(words in trouble for words in _NO_SHALLOW):
            await _fetch_refs(session, f"+{wanted}:{_TARGET}")
        else:
            raise
    return RemoteRef(commit=await _verify_commit(session, ref), name=ref.name)


async def _fetch_refs(session: GitSession, *refspecs: str, is_shallow: bool = False) -> None:
    options = ["--quiet", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--no-write-fetch-head"]
    depth = ["--depth=1"] if is_shallow else []
    await run_git(session, "fetch", *options, *depth, "--", session.url, *refspecs, is_remote=True)


async def _verify_commit(session: GitSession, ref: RemoteRef) -> str:
    """What was fetched, as 40 digits; equal to the wanted commit if one was given as such."""
    start = ref.commit if ref.name is None else _TARGET
    try:
        output = await run_git(session, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{start}^{{commit}}")
    except SkillError as error:
        raise SkillError(f"The repository has no commit {ref.commit!r}") from error
    commit = output.decode().strip()
    if not _FULL_COMMIT.fullmatch(commit):
        raise SkillError(f"git names the commit {commit!r}, which is not 40 hexadecimal digits")
    if ref.name is None and commit != ref.commit:
        raise SkillRejected(f"Commit {ref.commit!r} was asked for, and {commit!r} came")
    return commit


async def _list_files(session: GitSession, commit: str, subdir: str) -> tuple[TreeFile, ...]:
    tree = f"{commit}:{subdir}" if subdir else commit
    try:
        room = session.limits.max_files * _BYTES_PER_ENTRY
        listing = await run_git(session, "ls-tree", "-r", "-z", "-l", "--full-tree", tree, max_output=room)
    except SkillRejected:
        raise _too_many_files(session.limits) from None
    except SkillError as error:
        raise SkillError(f"The repository has no folder {subdir or '.'!r} in commit {commit[:12]}") from error
    lines = listing.split(b"\0")[:-1]
    if len(lines) > session.limits.max_files:
        raise _too_many_files(session.limits)
    files = tuple(_parse_tree_line(line) for line in lines)
    check_paths(file.path for file in files)
    for file in files:
        _check_size(file, session.limits)
    total = sum(file.size for file in files)
    if total > session.limits.max_bytes:
        raise SkillRejected(f"The package has {total} bytes, more than {session.limits.max_bytes}")
    return files


def _parse_tree_line(line: bytes) -> TreeFile:
    match = _TREE_LINE.fullmatch(line)
    if match is None:
        raise SkillRejected(f"git lists the entry {line[:80]!r}, which makes no sense")
    path = match["path"].decode("utf-8", "surrogateescape")
    mode = match["mode"].decode()
    match mode:
        case "120000":
            raise SkillRejected(f"{path!r} is a symbolic link", hint="A package holds plain files only")
        case "160000":
            raise SkillRejected(f"{path!r} is a submodule", hint="A package holds plain files only")
        case "100644" | "100755" | "100664":
            size = int(match["size"])
            return TreeFile(path=path, blob=match["id"].decode(), size=size, is_executable=mode == "100755")
        case _:
            raise SkillRejected(f"{path!r} has the unknown mode {mode!r}")


def _too_many_files(limits: InstallLimits) -> SkillRejected:
    return SkillRejected(f"The package has more than {limits.max_files} files", hint=MORE_FILES)


def _check_size(file: TreeFile, limits: InstallLimits) -> None:
    if file.size > limits.max_file_bytes:
        raise SkillRejected(f"{file.path!r} has {file.size} bytes, more than {limits.max_file_bytes}")
