"""The toolsets of skills as tools of a run. Their code runs in a process per skill, never in the agent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.errors import ToolFailed
from metier.skills.package import SkillPackage
from metier.skills.trust.judgement import TRUSTED_UNREAD
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.contract import RESPONSE_SCHEMA
from metier.tools.toolsets.client import ToolsetClient, ToolsetLimits
from metier.tools.toolsets.messages import CallRequest, DescribedTool, LoadFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetTool:
    """A method of a toolset, as a tool."""

    info: ToolInfo
    client: ToolsetClient
    method: str

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        request = CallRequest(tool=self.method, arguments=arguments, idempotency_key=context.idempotency_key)
        try:
            reply = await self.client.call(request, timeout_seconds=context.timeout_seconds)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetFailure:
    """A toolset that could not be loaded, or all of a skill's where none is named."""

    package: SkillPackage
    toolset: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetReading:
    """What could be loaded, and what not. Close it when the run ends."""

    tools: tuple[ToolsetTool, ...] = ()
    problems: tuple[Problem, ...] = ()
    """The failures in sentences, and names that stand twice."""
    failures: tuple[ToolsetFailure, ...] = ()
    clients: tuple[ToolsetClient, ...] = ()

    async def aclose(self) -> None:
        for client in self.clients:
            await client.aclose()


async def load_toolsets(
    packages: Sequence[SkillPackage],
    environ: Mapping[str, str],
    *,
    limits: ToolsetLimits | None = None,
    config: dict[str, JsonValue] | None = None,
    confinement: Confinement | None = None,
) -> ToolsetReading:
    """Start a process for each skill that names toolsets. A toolset that fails becomes a problem; the others load."""
    loaded: list[tuple[ToolsetTool, str]] = []
    failed: list[tuple[SkillPackage, LoadFailure]] = []
    clients: list[ToolsetClient] = []
    for package in packages:
        if not package.definition.toolsets:
            continue
        client = ToolsetClient(
            package, environ, limits=limits or ToolsetLimits(), config=config or {}, confinement=confinement
        )
        clients.append(client)
        try:
            reply = await client.load()
        except ToolFailed as error:
            failed.append((package, LoadFailure(toolset="", code=error.code, message=error.message)))
            continue
        failed += [(package, failure) for failure in reply.failures]
        loaded += [(_build_tool(package, client, described), described.name) for described in reply.tools]
    collisions = _find_collisions(loaded)
    problems = [_problem(package, failure) for package, failure in failed]
    problems += [_collision(short, names) for short, names in collisions.items()]
    return ToolsetReading(
        tools=tuple(tool if short in collisions else _with_alias(tool, short) for tool, short in loaded),
        problems=tuple(problems),
        failures=tuple(
            ToolsetFailure(package=package, toolset=failure.toolset, message=failure.message)
            for package, failure in failed
        ),
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
        # The user did not review these very bytes: what they say of themselves does not spare a question.
        is_claim=package.source in TRUSTED_UNREAD,
    )
    return ToolsetTool(info=info, client=client, method=described.name)


def _with_alias(tool: ToolsetTool, short: str) -> ToolsetTool:
    return replace(tool, info=replace(tool.info, aliases=(short,)))


def _find_collisions(loaded: Sequence[tuple[ToolsetTool, str]]) -> dict[str, list[str]]:
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
    )


def _problem(package: SkillPackage, failure: LoadFailure) -> Problem:
    subject = f"Toolset {failure.toolset!r}" if failure.toolset else "The toolsets"
    return Problem(
        severity="error",
        code=failure.code,
        message=f"{subject} of skill {package.definition.name!r} could not be loaded: {failure.message}",
        file=str(package.definition.file),
    )
