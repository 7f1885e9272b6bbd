"""Fetches one commit with the real `git` and lists its files. Nothing is checked out: hooks, filters, submodules,
large-file programs and the settings of this machine have no effect.

git runs in its own session with a clean environment, and cannot prompt. On cancellation, a timeout or excessive size
the whole session is killed.
"""

import base64
import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from metier.errors import SkillError, SkillRejected
from metier.programs.launcher import GIT, Program, find_program, open_program
from metier.skills.layout import MORE_FILES, InstallLimits, check_paths
from metier.skills.source import GitSource, check_ref

type Sleep = Callable[[float], Awaitable[None]]

_PASSED_ON = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SYSTEMROOT", "USERPROFILE", "APPDATA", "COMSPEC", "TEMP"),
    }
)
# No hook, filter, credential helper, prompt or background process may run, and `ext::` addresses would start programs.
_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.symlinks=false",
    "core.askPass=",
    # An empty value clears the list of helpers; a configured one could prompt or store the secret.
    "credential.helper=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.ext.allow=never",
    "safe.bareRepository=explicit",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    # A stalled transfer fails long before the timeout of the whole command, and is tried again.
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=60",
)
_OUTPUT_BYTES = 8 * 1024 * 1024
_ERROR_BYTES = 16 * 1024
_WATCH_SECONDS = 0.25

_AUTHENTICATION = re.compile(
    r"could not read (?:Username|Password)|Authentication failed|terminal prompts disabled|Permission denied \("
    r"|returned error: (?:401|403)|HTTP Basic: Access denied",
    re.IGNORECASE,
)
_HOST_KEY = re.compile(r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED")
_NOT_FOUND = re.compile(
    r"returned error: (?:404|410)|repository '[^']*' not found|does not appear to be a git repository"
    r"|not exported|Repository not found|does not exist",
    re.IGNORECASE,
)
_TRANSIENT = re.compile(
    r"Could not resolve|Failed to connect|Connection (?:timed out|reset|refused|closed)|timed out|unable to connect"
    r"|early EOF|returned error: (?:429|5\d\d)|unexpected disconnect|hung up unexpectedly|RPC failed|too slow"
    r"|Empty reply|transfer closed|Recv failure|Send failure|bytes of body are still expected|unable to look up",
    re.IGNORECASE,
)


# A dataclass, not a Struct: its `repr` must not show the secret.
@dataclass(frozen=True, slots=True, kw_only=True)
class GitSession:
    """A private repository that is filled from one address."""

    repository: Path
    url: str
    limits: InstallLimits
    sleep: Sleep = anyio.sleep
    secret: str = field(default="", repr=False)
    """`user:token` in base64, for a basic Authorization header; may be empty."""


class GitFailed(Exception):
    """git exited with an error; the message is its stderr."""

    def __init__(self, stderr: str, *, reason: str = "") -> None:
        super().__init__(stderr)
        self.stderr = stderr
        self.reason = reason
        """Why we killed it: `timeout`, `output` or `size`; empty if it failed by itself."""

    @property
    def is_transient(self) -> bool:
        if self.reason or _AUTHENTICATION.search(self.stderr) or _HOST_KEY.search(self.stderr):
            return False
        return _TRANSIENT.search(self.stderr) is not None and _NOT_FOUND.search(self.stderr) is None


async def run_git(session: GitSession, *args: str, is_remote: bool = False, max_output: int = _OUTPUT_BYTES) -> bytes:
    """Return git's stdout. A remote call is retried with backoff after a network failure.

    Raises `SkillError`, caused by `GitFailed`.
    """
    attempt = 1
    while True:
        try:
            return await _run_once(session, args, max_output=max_output)
        except GitFailed as failure:
            if not is_remote or not failure.is_transient or attempt >= session.limits.attempts:
                raise explain(failure, session) from failure
        await session.sleep(2.0 ** (attempt - 1))
        attempt += 1


@asynccontextmanager
async def start_git(session: GitSession, *args: str, has_input: bool = False) -> AsyncGenerator[Process]:
    """Start git. Leaving the block kills its whole session."""
    words = [part for setting in _SETTINGS for part in ("-c", setting)]
    words += ["--git-dir", str(session.repository), *args] if args[0] != "init" else args
    process = await _open(words, session, has_input=has_input)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            _kill(process)
            await _drain(process)
            await process.aclose()


def get_git(session: GitSession, environ: Mapping[str, str]) -> Program:
    """Return git with a clean environment, without `GIT_*` variables of the caller. Raises `SkillError`."""
    found = find_program(GIT, "git", environ, writable=(Path.cwd(),), passed=_PASSED_ON)
    if found is None:
        raise SkillError("git is not installed", hint="Install git, or add the skill from a local folder")
    return found.with_variables(_build_variables(session))


async def _open(words: list[str], session: GitSession, *, has_input: bool) -> Process:
    # Shielded, because a process that starts during a cancellation would have no handle with which to kill it.
    with anyio.CancelScope(shield=True):
        return await open_program(
            get_git(session, os.environ),
            *words,
            folder=session.repository.parent,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            # It isn't read while objects are requested, and a full pipe would block git.
            stderr=subprocess.DEVNULL if has_input else subprocess.PIPE,
        )
    raise AssertionError("the block above returns or raises")


def open_pipe[Pipe](pipe: Pipe | None) -> Pipe:
    """Return a pipe of the process. It exists because it was requested when the process started."""
    if pipe is None:
        raise RuntimeError("The process was started without this pipe")
    return pipe


def _build_variables(session: GitSession) -> dict[str, str]:
    protocols = "https:http:ssh" + (":file" if session.url.startswith("file://") else "")
    variables = {
        # The messages that decide about a retry are compared in English.
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_ATTR_NOSYSTEM": "1",
        # git must not find a repository of the user in a parent folder.
        "GIT_CEILING_DIRECTORIES": str(session.repository.parent.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        # Replace refs of a repository could show other content under the hash of a commit.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        # In batch mode, ssh asks neither for a password nor about an unknown host key.
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20",
        "GIT_TERMINAL_PROMPT": "0",
    }
    if session.secret:
        # In the environment, because every user of the machine can read arguments. Limited to one host.
        variables |= {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"http.{session.url}.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {session.secret}",
            # A redirect would send the secret to another address.
            "GIT_CONFIG_KEY_1": "http.followRedirects",
            "GIT_CONFIG_VALUE_1": "false",
        }
    return variables


def explain(failure: GitFailed, session: GitSession) -> SkillError:
    """Explain a failure to the user."""
    url, said = session.url, _last_line(failure.stderr)
    match failure.reason:
        case "timeout":
            seconds = f"{session.limits.timeout_seconds:g}"
            return SkillError(f"git did not finish within {seconds} s for {url!r}", hint="Try again later")
        case "output":
            return SkillRejected(f"The repository {url!r} lists more than can be checked")
        case "size":
            return SkillRejected(f"The repository {url!r} has more than {session.limits.max_repository_bytes} bytes")
        case _:
            pass
    if _HOST_KEY.search(failure.stderr):
        return SkillError(
            f"The host of {url!r} is not known to ssh", hint="Connect to it once with ssh, then try again"
        )
    if _AUTHENTICATION.search(failure.stderr):
        hint = "Use an ssh address with a key in ssh-agent, or check that the address exists"
        return SkillError("Repository requires authentication", hint=f"{hint}: {url}")
    if failure.is_transient:
        hint = f"Tried {session.limits.attempts} times; check the network and try again"
        return SkillError(f"Cannot reach {url!r}: {said}", hint=hint)
    if _NOT_FOUND.search(failure.stderr):
        return SkillError(f"Repository {url!r} was not found", hint="Check the address")
    return SkillError(f"git failed for {url!r}: {said}")


class _Call:
    """A running command with its output."""

    def __init__(self, process: Process, session: GitSession, max_output: int) -> None:
        self.process, self.session, self.max_output = process, session, max_output
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.reason = ""

    async def finish(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_size)
            async with anyio.create_task_group() as readers:
                readers.start_soon(self._read_output, open_pipe(self.process.stdout))
                readers.start_soon(self._read_errors, open_pipe(self.process.stderr))
            await self.process.wait()
            group.cancel_scope.cancel()

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason
        _kill(self.process)

    async def _read_output(self, stream: ByteReceiveStream) -> None:
        async for chunk in stream:
            if len(self.stdout) + len(chunk) > self.max_output:
                self.end("output")
                return
            self.stdout += chunk

    async def _read_errors(self, stream: ByteReceiveStream) -> None:
        async for chunk in stream:
            self.stderr = (self.stderr + chunk)[-_ERROR_BYTES:]

    async def _watch_size(self) -> None:
        while True:
            await anyio.sleep(_WATCH_SECONDS)
            if _folder_size(self.session.repository) > self.session.limits.max_repository_bytes:
                self.end("size")
                return


async def _run_once(session: GitSession, args: tuple[str, ...], *, max_output: int) -> bytes:
    async with start_git(session, *args) as process:
        call = _Call(process, session, max_output)
        with anyio.move_on_after(session.limits.timeout_seconds) as scope:
            await call.finish()
        if scope.cancelled_caught:
            call.end("timeout")
    # The repository may have grown after the last periodic check.
    if (
        not call.reason
        and args[0] == "fetch"
        and _folder_size(session.repository) > session.limits.max_repository_bytes
    ):
        call.reason = "size"
    if call.reason or process.returncode != 0:
        raise GitFailed(call.stderr.decode("utf-8", "replace"), reason=call.reason)
    return bytes(call.stdout)


async def _drain(process: Process) -> None:
    """Read remaining output, so that the pipes close before the event loop does."""
    for stream in (process.stdout, process.stderr):
        with anyio.move_on_after(1), suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while stream is not None:
                await stream.receive()


def _kill(process: Process) -> None:
    if process.returncode is not None:
        return
    try:
        if os.name == "posix":
            # The group, because git leaves the transfer to helper programs such as git-remote-https and ssh.
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        pass


def _folder_size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size  # noqa: PTH118 - called often
            except FileNotFoundError:
                # git may rename a temporary file during the walk.
                continue
    return total


def _last_line(stderr: str) -> str:
    lines = ["".join(char for char in line if char.isprintable()).strip() for line in stderr.splitlines()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))] or [line for line in lines if line]
    return telling[-1].removeprefix("fatal: ").removeprefix("error: ")[:300] if telling else "no reason given"


_FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{7,64}")
"""A full or abbreviated commit. It is never looked up as a branch or tag, because anyone could create one with such a
name."""
_TARGET = "refs/metier/target"
_NO_SHALLOW = ("dumb http transport does not support shallow", "does not support shallow")
_NOT_OFFERED = ("unadvertised object", "not our ref", "no such remote ref")
# More than a valid line of `ls-tree` has: a path has at most 1,024 bytes.
_BYTES_PER_ENTRY = 2_000
_TREE_LINE = re.compile(
    rb"(?P<mode>[0-7]{6}) (?P<kind>\w+) (?P<id>[0-9a-f]{40,64}) +(?P<size>\d+|-)\t(?P<path>.*)", re.DOTALL
)


class RemoteRef(Struct, frozen=True, kw_only=True):
    """The commit that a source refers to."""

    commit: str
    name: str | None
    """Full name of the ref, such as `refs/tags/v1`. None for a commit."""

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
    """A commit in a private bare repository, and the files of the requested folder."""

    session: GitSession
    ref: RemoteRef
    files: tuple[TreeFile, ...]


async def fetch_source(
    source: GitSource, repository: Path, *, limits: InstallLimits, sleep: Sleep = anyio.sleep
) -> Fetched:
    """Fetch into `repository`, which must not exist, and check every name, type and size before any file is written.

    Raises `SkillError` if the fetch fails, `SkillRejected` if the content is not allowed.
    """
    session = GitSession(repository=repository, url=source.url, limits=limits, sleep=sleep, secret=_secret(source))
    # Without a template, which may have hooks.
    await run_git(session, "init", "--quiet", "--bare", "--template=", "--", str(repository))
    ref = await _fetch(session, await _resolve(session, source))
    return Fetched(session=session, ref=ref, files=await _list_files(session, ref.commit, source.subdir))


async def write_files(fetched: Fetched, folder: Path) -> None:
    """Write the files without git: exactly the bytes of the commit, with modes 644 and 755."""
    async with start_git(fetched.session, "cat-file", "--batch", has_input=True) as process:
        requests, reader = open_pipe(process.stdin), BufferedByteReceiveStream(open_pipe(process.stdout))
        for file in fetched.files:
            await requests.send(f"{file.blob}\n".encode())
            header = await reader.receive_until(b"\n", 200)
            if header != f"{file.blob} blob {file.size}".encode():
                raise SkillRejected(f"{file.path!r} is not in the repository as its commit says")
            await _write_file(reader, folder / file.path, file)
            await reader.receive_exactly(1)  # the line end after each object


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
        # The registry will name this tree durably; `sync_tree` adds the folders.
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
    # `NAME^{}` is the commit behind an annotated tag, whose own name is that of the tag object.
    patterns = [pattern for name in candidates for pattern in (name, f"{name}^{{}}")]
    listed = await _ls_remote(session, *patterns)
    found = [name for name in candidates if name in listed]
    if len(found) > 1:
        hint = f"Write @refs/tags/{wanted} or @refs/heads/{wanted}"
        raise SkillError(f"{wanted!r} is both a branch and a tag", hint=hint)
    if not found:
        raise _unknown_ref(wanted)
    # An attacker could name a branch like the short form of a trusted commit.
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
            # The server only serves branch tips: fetch everything, which may include the commit.
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
    """Return the fetched commit with 40 digits. Raises if it differs from the requested commit."""
    start = ref.commit if ref.name is None else _TARGET
    try:
        # `^{commit}` resolves an annotated tag to its commit.
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
            raise SkillRejected(f"{path!r} is a symbolic link", hint="A package may only contain regular files")
        case "160000":
            raise SkillRejected(f"{path!r} is a submodule", hint="A package may only contain regular files")
        # Old versions of Git recorded 100664 for files that the group could write.
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
