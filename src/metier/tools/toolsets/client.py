"""The agent's end of a skill's worker process: start it, talk to it, kill it with everything it started."""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import BaseModel, JsonValue, ValidationError

from metier.dataclass import dataclass
from metier.errors import ToolFailed
from metier.skills.package import SkillPackage
from metier.tools.process.environment import build_environment
from metier.tools.process.output import Capture
from metier.tools.process.run import Command, ProcessLimits, ProcessTree
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.runner import check_may_run, take_code
from metier.tools.toolsets.messages import CallReply, CallRequest, LoadReply, LoadRequest

_STDERR_TAIL_BYTES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetLimits:
    load_timeout_seconds: float = 30
    call_timeout_seconds: float = 60
    max_reply_bytes: int = 1_048_576


class ToolsetClient:
    """One skill's toolsets. The process starts with the first request, and again after it died or was killed.

    Requests go one after the other: the methods of a toolset share its state.
    """

    def __init__(
        self,
        package: SkillPackage,
        environ: Mapping[str, str],
        *,
        limits: ToolsetLimits,
        config: dict[str, JsonValue],
        confinement: Confinement | None = None,
    ) -> None:
        self._package = package
        self._environ = environ
        self._limits = limits
        self._config = config
        self._confinement = confinement or Confinement()
        self._tree: ProcessTree | None = None
        self._replies: BufferedByteReceiveStream | None = None
        self._turn = anyio.Lock()

    async def load(self) -> LoadReply:
        """Import the toolsets in a fresh process. Raises `ToolFailed`: `permission_denied` without trust."""
        async with self._turn:
            return await self._start()

    async def call(self, request: CallRequest, *, timeout_seconds: float | None) -> CallReply:
        """Trust is checked again, for the bytes as they are now. Raises `ToolFailed`."""
        limit = self._limits.call_timeout_seconds
        limit = limit if timeout_seconds is None else min(limit, timeout_seconds)
        async with self._turn:
            await check_may_run(self._package)
            if self._tree is None:
                await self._start()
            return await self._ask(request, CallReply, timeout_seconds=limit)

    async def aclose(self) -> None:
        tree, self._tree, self._replies = self._tree, None, None
        if tree is not None:
            await tree.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _start(self) -> LoadReply:
        package = await take_code(self._package)
        await self.aclose()
        environment = build_environment(self._environ, self._package.definition.permissions_env)
        # -B: bytecode beside the modules would change the bytes that the user trusted.
        options = ["-I", "-B", "-X", "utf8"]
        command = Command(
            arguments=[sys.executable, *options, "-m", "metier.tools.toolsets.worker"],
            folder=package.folder,
            environment=environment,
            confinement=self._confinement.opened(package.folder.resolve()),
        )
        self._tree = await ProcessTree.start(command, ProcessLimits(), with_stdin=True)
        self._replies = BufferedByteReceiveStream(self._tree.stdout)
        definition = self._package.definition
        request = LoadRequest(
            skill=definition.name,
            folder=str(package.folder.resolve()),
            toolsets=definition.toolsets,
            config=self._config,
        )
        return await self._ask(request, LoadReply, timeout_seconds=self._limits.load_timeout_seconds)

    async def _ask[Reply: BaseModel](self, request: BaseModel, kind: type[Reply], *, timeout_seconds: float) -> Reply:
        """One request, one reply. If anything is unclear afterwards, cancellation included, the process is killed."""
        tree, replies = self._tree, self._replies
        if tree is None or replies is None:
            raise ToolFailed("The toolset process is not running")
        errors = Capture(_STDERR_TAIL_BYTES * 2)
        line = b""
        try:
            with anyio.fail_after(timeout_seconds):
                line = await _exchange(
                    tree, replies, request=request, limit=self._limits.max_reply_bytes, errors=errors
                )
            return kind.model_validate_json(line)
        except TimeoutError as error:
            await self.aclose()
            raise ToolFailed(f"The toolset did not answer within {timeout_seconds:g}s", code="timeout") from error
        except _Broken as error:
            await self.aclose()
            tail = errors.output().last(_STDERR_TAIL_BYTES).strip()
            raise ToolFailed(f"{error}\nstderr: {tail}" if tail else str(error)) from error
        except ValidationError as error:
            await self.aclose()
            raise ToolFailed("The toolset process gave an answer that cannot be understood") from error
        except BaseException:
            await self.aclose()
            raise


class _Broken(Exception):
    """The conversation with the process is over."""


async def _exchange(
    tree: ProcessTree, replies: BufferedByteReceiveStream, *, request: BaseModel, limit: int, errors: Capture
) -> bytes:
    """Send a line, read a line, and keep what the process writes to its log meanwhile, so that it never blocks."""
    line: bytes | None = None
    problem = ""
    async with anyio.create_task_group() as readers:
        readers.start_soon(_keep, tree, errors)
        try:
            await tree.stdin.send(request.model_dump_json().encode() + b"\n")
            line = await replies.receive_until(b"\n", limit)
        except anyio.DelimiterNotFound:
            problem = f"The toolset answered with more than {limit} bytes"
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            problem = "The toolset process ended"
            await tree.stop()
            readers.cancel_scope.deadline = anyio.current_time() + 1
        if line is not None or not problem.endswith("ended"):
            readers.cancel_scope.cancel()
    if line is None:
        raise _Broken(problem)
    return line


async def _keep(tree: ProcessTree, errors: Capture) -> None:
    try:
        while True:
            errors.add(await tree.stderr.receive())
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        return
