"""The tools of a run by name, and the only way to call them: arguments and results are checked, and failures caught."""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from pydantic import JsonValue

from metier.definitions.nearest import list_nearest
from metier.errors import MetierError, ToolFailed, UsageError
from metier.messages import ToolSpec
from metier.tools.base import Locating, Preview, Previewing, Refusing, Tool, ToolContext, ToolInfo, ToolResult
from metier.tools.schemas import SchemaCheck

_MIN_SIMILARITY = 0.5


def list_names(tools: Iterable[Tool]) -> frozenset[str]:
    """List all names that a call or a rule may use for these tools, without checking the tools."""
    known = {tool.info.name: tool for tool in tools}
    return frozenset((*known, *_unique_aliases(known.values())))


class Obstacle(Struct, frozen=True):
    """The reason why a call cannot run, whatever the rules say."""

    code: str
    reason: str


class Toolbox:
    """Looks up tools by name or alias. Immutable after construction."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Raises `UsageError` if two tools have the same name or a schema is invalid. Ambiguous aliases are dropped."""
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.info.name in self._tools:
                raise UsageError(f"Two tools are called {tool.info.name!r}", hint="Rename or disable one of them")
            self._tools[tool.info.name] = tool
        self._aliases = _unique_aliases(self._tools.values())
        self._input_checks = {name: SchemaCheck(name, tool.info.input_schema) for name, tool in self._tools.items()}
        self._output_checks = {name: SchemaCheck(name, tool.info.output_schema) for name, tool in self._tools.items()}

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name) or self._tools.get(self._aliases.get(name, ""))

    def infos(self) -> tuple[ToolInfo, ...]:
        """Return the descriptions of all tools, sorted by name."""
        return tuple(sorted((tool.info for tool in self._tools.values()), key=lambda info: info.name))

    def names(self) -> frozenset[str]:
        """List all names that a call or a rule may use."""
        return frozenset((*self._tools, *self._aliases))

    def aliases(self) -> dict[str, str]:
        """Return the name of the tool for each unambiguous alias."""
        return dict(self._aliases)

    def resolve(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names under which models see these tools. Unknown names stay unchanged."""
        return frozenset(tool.info.name if (tool := self.find(name)) else name for name in names)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools as a model sees them, sorted by name so that the same tools give the same prompt."""
        return tuple(
            ToolSpec(name=info.name, description=info.description, input_schema=info.input_schema)
            for info in self.infos()
        )

    async def call(
        self, name: str, arguments: dict[str, JsonValue], context: ToolContext, *, shown_as: str = ""
    ) -> ToolResult:
        """Execute a call. Any failure becomes a result that the model can read.

        `shown_as` is the tool's name in errors, if the model knows it by another name.
        """
        tool = self.find(name)
        if tool is None:
            return _failure(self._describe_unknown(name), code="unknown_tool")
        shown = shown_as or tool.info.name
        if wrong := self.get_wrong_input(name, arguments):
            return _failure(f"Invalid input for {shown!r}: {wrong}", code="invalid_input")
        result = await _execute(tool, arguments, context, shown_as=shown)
        # A question or another run comes before the result, so the output schema does not apply yet.
        if not result.ok or not result.is_final:
            return result
        if wrong := await self._output_checks[tool.info.name].get_error_in_thread(result.output):
            return _failure(f"Tool {shown!r} gave an invalid result: {wrong}", code="invalid_output")
        return result

    async def preview(self, name: str, arguments: dict[str, JsonValue], context: ToolContext) -> Preview | None:
        """Preview a call, if its tool can."""
        tool = self.find(name)
        if not isinstance(tool, Previewing):
            return None
        try:
            return await tool.preview(arguments, context)
        except ToolFailed as error:
            return Preview(f"No preview: {error.sentence}", failure=_failure(error.sentence, code=error.code))
        except MetierError as error:
            return Preview(f"No preview: {error.sentence}")
        except Exception as error:  # noqa: BLE001  as in `_execute`
            return Preview(f"No preview: {type(error).__name__}: {error}")

    async def locate(self, name: str, arguments: dict[str, JsonValue]) -> dict[str, str]:
        """Return the real targets of a call's paths, by argument; empty if its tool can't tell."""
        tool = self.find(name)
        if not isinstance(tool, Locating) or self.get_wrong_input(name, arguments):
            return {}
        try:
            return await tool.locate(arguments)
        except MetierError:
            return {}  # the call itself reports the problem

    def find_obstacle(self, name: str, arguments: Mapping[str, JsonValue]) -> Obstacle | None:
        """Return the obstacle of a call, as far as its name and arguments tell. Doesn't touch the disk."""
        tool = self.find(name)
        if tool is None:
            return Obstacle("unknown_tool", self._describe_unknown(name))
        if wrong := self.get_wrong_input(name, dict(arguments)):
            return Obstacle("invalid_input", f"Invalid input for {tool.info.name!r}: {wrong}")
        # Runs, `policy explain`, backtests and replays share this check, so it must not depend on the machine.
        refusal = tool.refuse(arguments) if isinstance(tool, Refusing) else ""
        return Obstacle("permission_denied", refusal) if refusal else None

    def get_wrong_input(self, name: str, arguments: JsonValue) -> str:
        """Return the problem of a call's arguments, or an empty string."""
        tool = self.find(name)
        return "" if tool is None else self._input_checks[tool.info.name].describe_errors(arguments)

    def _describe_unknown(self, name: str) -> str:
        known = [*self._tools, *self._aliases]
        nearest = list_nearest(name, known, at_least=_MIN_SIMILARITY)
        if not nearest:
            return f"There is no tool {name!r}; there are: {', '.join(sorted(self._tools)) or 'none'}"
        return f"There is no tool {name!r}; the nearest are: {', '.join(nearest)}"


async def _execute(tool: Tool, arguments: dict[str, JsonValue], context: ToolContext, *, shown_as: str) -> ToolResult:
    try:
        return await tool.execute(arguments, context)
    except ToolFailed as error:
        return _failure(error.sentence, code=error.code)
    except MetierError as error:
        return _failure(error.sentence, code="execution_failed")
    except Exception as error:  # noqa: BLE001  tools are other people's code: a bug in one must not end the run
        return _failure(f"Tool {shown_as!r} failed: {type(error).__name__}: {error}", code="execution_failed")


def _unique_aliases(tools: Iterable[Tool]) -> dict[str, str]:
    owners: dict[str, set[str]] = {}
    for tool in tools:
        for alias in tool.info.aliases:
            owners.setdefault(alias, set()).add(tool.info.name)
    return {alias: next(iter(names)) for alias, names in owners.items() if len(names) == 1}


def _failure(message: str, *, code: str) -> ToolResult:
    return ToolResult(ok=False, error=message, meta={"code": code})
