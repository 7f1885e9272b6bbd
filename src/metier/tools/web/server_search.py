"""`WebSearch` by a tool of an external server: the same tool for the model, under the same network policy."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from pydantic import JsonValue

from metier.errors import ConfigError
from metier.lazy_regex import lazy_regex
from metier.tools.base import Tool, ToolContext, ToolResult
from metier.tools.web.options import WebSearchOptions
from metier.tools.web.resolving import WebAccess
from metier.tools.web.search import Found, WebSearch, choose_open, is_open, read_query, render

MAX_TEXT_CHARACTERS = 8_000
_QUERIES = ("query", "q", "search_query", "searchQuery", "keywords", "term")
_COUNTS = ("max_results", "maxResults", "count", "num_results", "numResults", "limit")
_LISTS = ("results", "items", "organic", "web", "data")
_ADDRESS = lazy_regex(r"""https?://[^\s<>()[\]"'`]+""")
_FIELDS = {
    "title": ("title", "name"),
    "url": ("url", "link", "href"),
    "excerpt": ("description", "snippet", "content", "text", "excerpt"),
}


class ServerSearch:
    """Rules that name the server's own tool hold for it too: it is an alias."""

    def __init__(self, tool: Tool, options: WebSearchOptions, *, access: WebAccess | None) -> None:
        """Raises `ConfigError` where the tool takes no query."""
        own = tool.info
        # Repeating a call, and its risk, are what they are for the tool of the server.
        effect = WebSearch.info.effect if own.effect == "read" else own.effect
        self.info = replace(WebSearch.info, aliases=(own.name,), risk=own.risk, effect=effect)
        self._tool = tool
        self._options = options
        self._access = access or WebAccess()
        properties = tool.info.input_schema.get("properties")
        self._names = tuple(properties) if isinstance(properties, dict) else ()
        if (query := _find_name(self._names, _QUERIES)) is None:
            raise ConfigError(
                f"web_search.mcp_tool {tool.info.name!r} takes no query",
                hint=f"Name a tool that has one of the parameters {', '.join(_QUERIES)}",
            )
        self._query = query

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        query, most = read_query(arguments, self._options)
        count = _find_name(self._names, _COUNTS)
        given: dict[str, JsonValue] = {self._query: query, **({count: most} if count is not None else {})}
        result = await self._tool.execute(given, context)
        if not result.ok:
            return result
        found = read_results(result.output)
        if found is None:
            return ToolResult(ok=True, output=_choose_lines(result.output, self._access))
        chosen = choose_open(found, self._access)[:most]
        return ToolResult(ok=True, output=render(chosen), meta={"results": len(chosen)})


def add_search(tools: Sequence[Tool], options: WebSearchOptions, *, access: WebAccess | None) -> tuple[Tool, ...]:
    """With `WebSearch`, where the tool that it is made of is among them. Raises `ConfigError`."""
    named = next((tool for tool in tools if tool.info.name == options.mcp_tool), None)
    if options.backend != "mcp" or named is None:
        return tuple(tools)
    return (*tools, ServerSearch(named, options, access=access))


def read_results(output: JsonValue) -> list[Found] | None:
    """The list that an answer holds; None where it is text."""
    value: object = output
    if isinstance(output, str):
        try:
            value = json.loads(output)
        except (ValueError, RecursionError):
            return None
    items = _find_list(value)
    if items is None:
        return None
    found = [Found(*(_read(item, names) for names in _FIELDS.values())) for item in items]
    return [each for each in found if each.url]


def _find_list(value: object, depth: int = 0) -> list[object] | None:
    if isinstance(value, list):
        return cast("list[object]", value)
    if not isinstance(value, dict) or depth > 2:
        return None
    fields = cast("Mapping[str, object]", value)
    found = (_find_list(fields[name], depth + 1) for name in _LISTS if name in fields)
    return next((items for items in found if items is not None), None)


def _read(item: object, names: Iterable[str]) -> str:
    fields = cast("Mapping[str, object]", item if isinstance(item, dict) else {})
    said = next((value for name in names if isinstance(value := fields.get(name), str)), "")
    return " ".join(said.split())


def _choose_lines(output: JsonValue, access: WebAccess) -> str:
    """A text, without the lines that name an address which the agent may not fetch."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    lines = [line for line in text.splitlines() if all(is_open(url, access) for url in _ADDRESS.findall(line))]
    return "\n".join(lines)[:MAX_TEXT_CHARACTERS] or "No results"


def _find_name(known: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in known), None)
