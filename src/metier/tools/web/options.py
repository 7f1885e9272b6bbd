"""The `web_search:` section of `agent.yaml`: which search engine the tool `WebSearch` asks. Never holds a key."""

from typing import Annotated, Literal

from pydantic import Field

from metier.values import Value

BRAVE = "https://api.search.brave.com/res/v1/web/search"


class WebSearchOptions(Value):
    """Search engine for `WebSearch`; without one there is no such tool."""

    backend: Literal["off", "searxng", "brave", "mcp"] = Field(
        default="off",
        description=(
            "What answers: a SearXNG server, Brave or a server with the same answers, a tool of an MCP server, or off: "
            "no such tool."
        ),
    )
    mcp_tool: str = Field(
        default="",
        description="The tool of an accepted MCP server that searches, as server/tool; needed for mcp.",
    )
    url: str = Field(
        default="",
        description="The address of the search endpoint; needed for searxng, such as http://127.0.0.1:8888/search.",
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="BRAVE_API_KEY", description="The environment variable that holds the key of brave."
    )
    max_results: int = Field(default=8, ge=1, le=20, description="How many results the model gets at most.")

    @property
    def endpoint(self) -> str:
        """Empty where nothing is configured."""
        if self.backend in ("off", "mcp"):
            return ""
        return self.url or (BRAVE if self.backend == "brave" else "")
