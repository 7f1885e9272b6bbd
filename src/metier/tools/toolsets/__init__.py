"""The base class for the toolsets of skills, whose methods are tools. Runs nothing by itself.

    class Greetings(AgentToolset):
        async def greet(self, name: Annotated[str, Field(description="Whom to greet")]) -> Response:
            \"\"\"Say hello.\"\"\"
            return self._success(f"Hello, {name}")

`SKILL.md` names it as `module:Class` under `toolsets:`. Names, types, defaults and descriptions of the parameters
become the schema that a model sees; methods may be plain or `async`.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from pydantic import JsonValue

from metier.tools.effects import Effect, Risk

type Response = dict[str, JsonValue]
"""`{success, result, message, error}`."""

_DECLARATION = "__metier_declaration__"


class Declaration(Struct, frozen=True, kw_only=True):
    """The author's declaration about a tool. The default is an unknown effect, so calls are never repeated."""

    effect: Effect = "opaque"
    risk: Risk = "medium"


class AgentToolset:
    """The base of every toolset. Its public methods are the tools, unless `get_tools` is overridden."""

    def __init__(self, config: Mapping[str, JsonValue] | None = None) -> None:
        self.config: Mapping[str, JsonValue] = config or {}

    idempotency_key: str = ""
    """Set for each call; the same when a call is repeated after a crash. A `keyed` tool passes it on."""

    def get_tools(self) -> Sequence[Callable[..., object]]:
        """Return the methods that are tools, in the order of their definition."""
        names = dict.fromkeys(
            name
            for owner in reversed(type(self).__mro__)
            if issubclass(owner, AgentToolset) and owner is not AgentToolset
            for name, member in vars(owner).items()
            if callable(member) and not name.startswith("_") and name != "get_tools"
        )
        return [getattr(self, name) for name in names]

    def _success(self, result: JsonValue = None, message: str = "") -> Response:
        return {"success": True, "result": result, "message": message, "error": None}

    def _error(self, error: str, message: str = "") -> Response:
        return {"success": False, "result": None, "message": message or error, "error": error}


def declare[Method: Callable[..., object]](
    *, effect: Effect = "opaque", risk: Risk = "medium"
) -> Callable[[Method], Method]:
    """Declare the effect of repeating a call (`read`, `idempotent`, `keyed` or `opaque`) and its risk."""

    def mark(method: Method) -> Method:
        setattr(method, _DECLARATION, Declaration(effect=effect, risk=risk))
        return method

    return mark


def get_declaration(method: Callable[..., object]) -> Declaration:
    declaration = getattr(method, _DECLARATION, None)
    return declaration if isinstance(declaration, Declaration) else Declaration()
