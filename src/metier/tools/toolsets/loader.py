"""The toolsets of skills as tools of a run.

Their code runs in one worker process per skill, never in the agent. The whole process tree ends with the run.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import anyio
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, JsonValue, ValidationError

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.errors import ToolFailed
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import TRUSTED_UNREAD
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier.tools.process.child_environment import build_environment
from metier.tools.process.json_lines import MAX_LINE_BYTES, ChildModule, JsonLinesChild
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.active_scripts import RESPONSE_SCHEMA
from metier.tools.scripts.runner import check_may_run, copy_trusted_code
from metier.tools.toolsets.worker import (
    CallReply,
    CallRequest,
    DescribedTool,
    LoadFailure,
    LoadReply,
    LoadRequest,
)


class ToolsetLimits(Struct, frozen=True, kw_only=True):
    load_timeout_seconds: float = 30
    call_timeout_seconds: float = 60
    max_reply_bytes: int = MAX_LINE_BYTES


class ToolsetClient:
    """One skill's toolsets. The process starts with the first request, and again after it ended.

    Requests are serialized, because the methods of a toolset share its state.
    """

    def __init__(
        self,
        package: SkillPackage,
        environ: Mapping[str, str],
        *,
        limits: ToolsetLimits,
        confinement: Confinement | None = None,
    ) -> None:
        self._package = package
        self._environ = environ
        self._limits = limits
        self._confinement = confinement or Confinement()
        self._child: JsonLinesChild | None = None
        self._turn = anyio.Lock()

    async def load(self) -> LoadReply:
        """Import the toolsets in a fresh process. Raises `ToolFailed`: `permission_denied` without trust."""
        async with self._turn:
            return await self._start()

    async def call(
        self,
        request: CallRequest,
        *,
        timeout_seconds: float | None,
        keep_partial: Callable[[str], None] | None = None,
    ) -> CallReply:
        """Call a tool, after checking the trust of the skill's current files again. Raises `ToolFailed`.

        `keep_partial` receives the output so far of an interrupted call.
        """
        limit = self._limits.call_timeout_seconds
        limit = limit if timeout_seconds is None else min(limit, timeout_seconds)
        async with self._turn:
            # The files or the trust may have changed since the toolset was loaded.
            await check_may_run(self._package)
            child = self._child
            if child is None:
                await self._start()
                child = self._child
            assert child is not None, "started above"
            return await self._ask(child, request, CallReply, timeout_seconds=limit, keep_partial=keep_partial)

    async def aclose(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _start(self) -> LoadReply:
        package = await copy_trusted_code(self._package)
        await self.aclose()
        definition = self._package.definition
        self._child = await JsonLinesChild.start(
            ChildModule(
                module="metier.tools.toolsets.worker",
                subject="The toolset",
                folder=package.folder,
                environment=build_environment(self._environ, definition.permissions_env),
                confinement=self._confinement.opened(package.folder.resolve()),
                max_line_bytes=self._limits.max_reply_bytes,
            )
        )
        request = LoadRequest(
            skill=definition.name,
            folder=str(package.folder.resolve()),
            toolsets=definition.toolsets,
        )
        return await self._ask(self._child, request, LoadReply, timeout_seconds=self._limits.load_timeout_seconds)

    async def _ask[Reply: BaseModel](
        self,
        child: JsonLinesChild,
        request: BaseModel,
        kind: type[Reply],
        *,
        timeout_seconds: float,
        keep_partial: Callable[[str], None] | None = None,
    ) -> Reply:
        """Send a request and return its reply. After a failure or cancellation its state is unknown, so it is ended."""
        try:
            reply = await child.ask(request.model_dump(mode="json"), timeout_seconds=timeout_seconds)
            return kind.model_validate(reply)
        except ValidationError as error:
            await self.aclose()
            raise ToolFailed("The toolset's answer is invalid") from error
        except ToolFailed:
            await self.aclose()
            raise
        except BaseException:
            if keep_partial is not None:
                keep_partial(await child.read_partial_log())
            await self.aclose()
            raise


class ToolsetTool(Struct, frozen=True, kw_only=True):
    """A method of a toolset, as a tool."""

    info: ToolInfo
    client: ToolsetClient
    method: str

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        request = CallRequest(tool=self.method, arguments=arguments, idempotency_key=context.idempotency_key)
        try:
            reply = await self.client.call(
                request,
                timeout_seconds=context.timeout_seconds,
                keep_partial=lambda text: context.keep_partial(context.clean(text)),
            )
        except ToolFailed as error:
            output: dict[str, JsonValue] = {
                "success": False,
                "result": None,
                "message": error.message,
                "error": error.code,
            }
            return ToolResult(ok=False, output=output, error=error.message, meta={"code": error.code})
        failure = "" if reply.success else reply.message or reply.error or "The tool failed"
        meta: dict[str, JsonValue] = {} if reply.success else {"code": reply.error or "execution_failed"}
        return ToolResult(ok=reply.success, output=reply.model_dump(), error=failure, meta=meta)


class ToolsetReading(Struct, frozen=True, kw_only=True):
    """The loaded toolsets, and their problems. Close it when the run ends."""

    tools: tuple[ToolsetTool, ...] = ()
    problems: tuple[Problem, ...] = ()
    """The failures as messages, and ambiguous names of tools."""
    failures: tuple[tuple[SkillPackage, LoadFailure], ...] = ()
    clients: tuple[ToolsetClient, ...] = ()

    async def aclose(self) -> None:
        for client in self.clients:
            await client.aclose()


async def load_toolsets(
    packages: Sequence[SkillPackage],
    environ: Mapping[str, str],
    *,
    limits: ToolsetLimits | None = None,
    confinement: Confinement | None = None,
) -> ToolsetReading:
    """Start a process for each skill with toolsets. A toolset that fails is reported as a problem; the others load."""
    loaded: list[tuple[ToolsetTool, str]] = []
    failed: list[tuple[SkillPackage, LoadFailure]] = []
    clients: list[ToolsetClient] = []
    for package in packages:
        if not package.definition.toolsets:
            continue
        client = ToolsetClient(package, environ, limits=limits or ToolsetLimits(), confinement=confinement)
        clients.append(client)
        try:
            reply = await client.load()
        except ToolFailed as error:
            failed.append((package, LoadFailure(toolset="", code=error.code, message=error.message)))
            continue
        failed += [(package, failure) for failure in reply.failures]
        loaded += [(_build_tool(package, client, described), described.name) for described in reply.tools]
    collisions = _get_collisions(loaded)
    problems = [_problem(package, failure) for package, failure in failed]
    problems += [_collision(short, names) for short, names in collisions.items()]
    return ToolsetReading(
        tools=tuple(tool if short in collisions else _with_alias(tool, short) for tool, short in loaded),
        problems=tuple(problems),
        failures=tuple(failed),
        clients=tuple(clients),
    )


def _build_tool(package: SkillPackage, client: ToolsetClient, described: DescribedTool) -> ToolsetTool:
    name = f"{canonical_name(package.definition.name)}.{described.name}"
    info = ToolInfo(
        id=f"skill:{name}",
        name=name,
        description=described.description,
        category="custom",
        input_schema=described.input_schema,
        output_schema=RESPONSE_SCHEMA,
        risk=described.risk,
        effect=described.effect,
        # The user trusted the source and did not review these files, so their declarations don't skip an approval.
        is_claim=package.source in TRUSTED_UNREAD,
    )
    return ToolsetTool(info=info, client=client, method=described.name)


def _with_alias(tool: ToolsetTool, short: str) -> ToolsetTool:
    return replace(tool, info=dataclasses.replace(tool.info, aliases=(short,)))


def _get_collisions(loaded: Sequence[tuple[ToolsetTool, str]]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for tool, short in loaded:
        owners.setdefault(short, []).append(tool.info.name)
    return {short: names for short, names in owners.items() if len(names) > 1}


def _collision(short: str, names: list[str]) -> Problem:
    listed = " and ".join(repr(name) for name in names)
    return Problem(
        severity="warning",
        code="tool_collision",
        message=f"Tool name {short!r} belongs to {listed}",
        hint="Each is called by its full name",
        subject=" and ".join(dict.fromkeys(name.rpartition(".")[0] for name in names)),
    )


def _problem(package: SkillPackage, failure: LoadFailure) -> Problem:
    subject = f"Toolset {failure.toolset!r}" if failure.toolset else "The toolsets"
    return Problem(
        severity="error",
        code=failure.code,
        message=f"{subject} of skill {package.definition.name!r} could not be loaded: {failure.message}",
        file=str(package.definition.file),
    )
