"""Run `git` so that nothing of a repository or of this machine's settings is executed, and `git` asks no question."""

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

from metier.errors import SkillError, SkillRejected
from metier.programs.launcher import GIT, Program, find_program, open_program
from metier.skills.layout import InstallLimits

type Sleep = Callable[[float], Awaitable[None]]

_PASSED_ON = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SYSTEMROOT", "USERPROFILE", "APPDATA", "COMSPEC", "TEMP"),
    }
)
_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.symlinks=false",
    "core.askPass=",
    "credential.helper=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.ext.allow=never",
    "safe.bareRepository=explicit",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSession:
    """One repository of ours that is filled from one address."""

    repository: Path
    url: str
    limits: InstallLimits
    sleep: Sleep = anyio.sleep
    secret: str = field(default="", repr=False)
    """`user:token` in base64, for a basic Authorization header; empty for none."""


class GitFailed(Exception):
    """git ended with an error; the text is what it wrote to stderr."""

    def __init__(self, stderr: str, *, reason: str = "") -> None:
        super().__init__(stderr)
        self.stderr = stderr
        self.reason = reason
        """Why we ended it: `timeout`, `output` or `size`; empty when it failed by itself."""

    @property
    def is_transient(self) -> bool:
        if self.reason or _AUTHENTICATION.search(self.stderr) or _HOST_KEY.search(self.stderr):
            return False
        return _TRANSIENT.search(self.stderr) is not None and _NOT_FOUND.search(self.stderr) is None


async def run_git(session: GitSession, *args: str, is_remote: bool = False, max_output: int = _OUTPUT_BYTES) -> bytes:
    """What git wrote to stdout. A call that is remote is tried again, with back-off, when the network is to blame.

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
    """A running git; its whole session is killed when the block is left before it ended."""
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
    """Find git, with everything it may know. Every GIT_… variable of the caller is left out. Raises `SkillError`."""
    found = find_program(GIT, "git", environ, writable=(Path.cwd(),), passed=_PASSED_ON)
    if found is None:
        raise SkillError("git is not installed", hint="Install git, or add the skill from a local folder")
    return found.with_variables(_build_variables(session))


async def _open(words: list[str], session: GitSession, *, has_input: bool) -> Process:
    # Starting is not cut in two by a cancellation: a process without a handle could not be killed.
    with anyio.CancelScope(shield=True):
        return await open_program(
            get_git(session, os.environ),
            *words,
            folder=session.repository.parent,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if has_input else subprocess.PIPE,
        )
    raise AssertionError("the block above returns or raises")


def open_pipe[Pipe](pipe: Pipe | None) -> Pipe:
    """A pipe that was asked for when the process was started."""
    if pipe is None:
        raise RuntimeError("The process was started without this pipe")
    return pipe


def _build_variables(session: GitSession) -> dict[str, str]:
    protocols = "https:http:ssh" + (":file" if session.url.startswith("file://") else "")
    variables = {
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(session.repository.parent.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20",
        "GIT_TERMINAL_PROMPT": "0",
    }
    if session.secret:
        # In the environment, not in the arguments, where every user of the machine could read it; and to one host only.
        variables |= {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"http.{session.url}.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {session.secret}",
            "GIT_CONFIG_KEY_1": "http.followRedirects",
            "GIT_CONFIG_VALUE_1": "false",
        }
    return variables


def explain(failure: GitFailed, session: GitSession) -> SkillError:
    """The failure in words for a user."""
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
    """One running command: what it wrote so far, and why we ended it, if we did."""

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
    # A download that ended between two looks at its size is measured once more.
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
    """Read what is left, so that the pipes end and are closed before the event loop is."""
    for stream in (process.stdout, process.stderr):
        with anyio.move_on_after(1), suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while stream is not None:
                await stream.receive()


def _kill(process: Process) -> None:
    if process.returncode is not None:
        return
    try:
        if os.name == "posix":
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
                # git renames its temporary files while we look.
                continue
    return total


def _last_line(stderr: str) -> str:
    lines = ["".join(char for char in line if char.isprintable()).strip() for line in stderr.splitlines()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))] or [line for line in lines if line]
    return telling[-1].removeprefix("fatal: ").removeprefix("error: ")[:300] if telling else "no reason given"
