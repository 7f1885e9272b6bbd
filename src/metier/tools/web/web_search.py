"""`WebSearch`: search with the engine in the settings, or with a tool of an MCP server.

Results with URLs that the agent may not fetch are dropped.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import quote_plus

import anyio
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.errors import ConfigError, ToolFailed
from metier.prompts.texts import build_parameters, load_tool_text
from metier.tools.base import Tool, ToolContext, ToolInfo, ToolResult
from metier.tools.options import WebSearchOptions
from metier.tools.web.url import WebAccess, check_address, check_domain, check_name, parse_url
from metier.tools.web.web_fetch import WebFetch

TIMEOUT_SECONDS = 20.0
MAX_QUERY_CHARACTERS = 400
MAX_EXCERPT_CHARACTERS = 400
_MAX_BYTES = 1_000_000


class SearchHit(Struct, frozen=True):
    title: str
    url: str
    excerpt: str


class WebSearch:
    info = ToolInfo(
        id="builtin:WebSearch",
        name="WebSearch",
        description=load_tool_text("WebSearch").description,
        category="web",
        input_schema=build_parameters("WebSearch", {"query": "string", "max_results": "integer"}, required=("query",)),
        output_schema={"type": "string"},
        risk="medium",
        # Not `read`, although it may be repeated: the query can carry data to a third party.
        effect="idempotent",
    )

    def __init__(self, options: WebSearchOptions, *, access: WebAccess | None, key: str = "") -> None:
        self._options = options
        self._access = access or WebAccess()
        self._key = key
        self._endpoint = parse_url(options.endpoint)
        # The user configured this server, so it may be in a private network. Only this host and port are opened.
        own = (self._endpoint.host, self._endpoint.port)
        self._web = WebFetch(replace(self._access, open_hosts=(own,)), timeout_seconds=TIMEOUT_SECONDS)

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        query, most = read_query(arguments, self._options)
        seconds = min(TIMEOUT_SECONDS, context.timeout_seconds or TIMEOUT_SECONDS)
        try:
            with anyio.fail_after(seconds):
                data = await self._web.get(self._build_url(query, most), headers=self._headers(), most=_MAX_BYTES)
        except TimeoutError as error:
            raise ToolFailed(f"The search took longer than {seconds:g} seconds", code="timeout") from error
        found = choose_open(parse_results(data), self._access)[:most]
        return ToolResult(ok=True, output=render(found), meta={"results": len(found)})

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """Reject the search if the engine's domain is not allowed."""
        del arguments
        try:
            check_domain(self._endpoint, self._access)
        except ToolFailed as error:
            return error.sentence
        return ""

    def _build_url(self, query: str, most: int) -> str:
        base = self._endpoint.text
        more = f"q={quote_plus(query)}" + (f"&count={most}" if self._options.backend == "brave" else "&format=json")
        return f"{base}{'&' if '?' in base else '?'}{more}"

    def _headers(self) -> dict[str, str]:
        return {"Accept": "application/json"} | ({"X-Subscription-Token": self._key} if self._key else {})


def read_query(arguments: Mapping[str, JsonValue], options: WebSearchOptions) -> tuple[str, int]:
    """Return the query and the maximum number of results. Raises `ToolFailed`."""
    query = " ".join(str(arguments["query"]).split())
    if not query or len(query) > MAX_QUERY_CHARACTERS:
        raise ToolFailed(f"A query has 1 to {MAX_QUERY_CHARACTERS} characters", code="invalid_input")
    wanted = arguments.get("max_results")
    return query, min(options.max_results, max(1, wanted)) if isinstance(wanted, int) else options.max_results


def choose_open(found: Sequence[SearchHit], access: WebAccess) -> list[SearchHit]:
    """Return the results that the agent may fetch."""
    return [each for each in found if is_open(each.url, access)]


def is_open(address: str, access: WebAccess) -> bool:
    try:
        url = parse_url(address)
        check_domain(url, access)
        check_name(url)
        if url.address is not None:
            check_address(url, url.address)
    except ToolFailed:
        return False
    return True


def parse_results(data: bytes) -> list[SearchHit]:
    """Parse the response of Brave or SearXNG. Raises `ToolFailed` for anything else."""
    try:
        body = cast("object", json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ToolFailed(
            "The search engine did not answer with JSON",
            hint="SearXNG needs `json` among search.formats of its settings",
            code="invalid_output",
        ) from error
    items = _find_list(body)
    if items is None:
        raise ToolFailed("The search engine answered without a list of results", code="invalid_output")
    return _read_items(items)


def render(found: Sequence[SearchHit]) -> str:
    """Results as the model reads them."""
    if not found:
        return "No results"
    return "\n\n".join(
        f"{number}. {each.title[:MAX_EXCERPT_CHARACTERS]}\n{each.url}\n{each.excerpt[:MAX_EXCERPT_CHARACTERS]}".rstrip()
        for number, each in enumerate(found, start=1)
    )


MAX_TEXT_CHARACTERS = 8_000
_QUERIES = ("query", "q", "search_query", "searchQuery", "keywords", "term")
_COUNTS = ("max_results", "maxResults", "count", "num_results", "numResults", "limit")
_LISTS = ("results", "items", "organic", "web", "data")
_ADDRESS = re.compile(r"""https?://[^\s<>()[\]"'`]+""")
_FIELDS = {
    "title": ("title", "name"),
    "url": ("url", "link", "href"),
    "excerpt": ("description", "snippet", "content", "text", "excerpt"),
}


class ServerSearch:
    """`WebSearch` by a server's tool, whose name is an alias so that rules for it apply too."""

    def __init__(self, tool: Tool, options: WebSearchOptions, *, access: WebAccess | None) -> None:
        """Raises `ConfigError` if the tool has no parameter for the query."""
        own = tool.info
        # Effect and risk are those of the server's tool, but never `read`.
        effect = WebSearch.info.effect if own.effect == "read" else own.effect
        self.info = dataclasses.replace(WebSearch.info, aliases=(own.name,), risk=own.risk, effect=effect)
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
    """Add `WebSearch` if the configured server tool is among the tools. Raises `ConfigError`."""
    named = next((tool for tool in tools if tool.info.name == options.mcp_tool), None)
    if options.backend != "mcp" or named is None:
        return tuple(tools)
    return (*tools, ServerSearch(named, options, access=access))


def read_results(output: JsonValue) -> list[SearchHit] | None:
    """Return the list of results in a tool's output; None if it is text."""
    value: object = output
    if isinstance(output, str):
        try:
            value = json.loads(output)
        except (ValueError, RecursionError):
            return None
    items = _find_list(value)
    return None if items is None else _read_items(items)


def _read_items(items: Iterable[object]) -> list[SearchHit]:
    found = [SearchHit(*(_read(item, names) for names in _FIELDS.values())) for item in items]
    return [each for each in found if each.url]


def _find_list(value: object, depth: int = 0) -> list[object] | None:
    if isinstance(value, list):
        return cast("list[object]", value)
    # Brave nests its list: `{"web": {"results": […]}}`.
    if not isinstance(value, dict) or depth > 2:
        return None
    fields = cast("Mapping[str, object]", value)
    found = (_find_list(fields[name], depth + 1) for name in _LISTS if name in fields)
    return next((items for items in found if items is not None), None)


def _read(item: object, names: Iterable[str]) -> str:
    fields = cast("Mapping[str, object]", item if isinstance(item, dict) else {})
    text = next((value for name in names if isinstance(value := fields.get(name), str)), "")
    return " ".join(text.split())


def _choose_lines(output: JsonValue, access: WebAccess) -> str:
    """Return the text without lines that have a URL which the agent may not fetch."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    lines = [line for line in text.splitlines() if all(is_open(url, access) for url in _ADDRESS.findall(line))]
    return "\n".join(lines)[:MAX_TEXT_CHARACTERS] or "No results"


def _find_name(known: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in known), None)
